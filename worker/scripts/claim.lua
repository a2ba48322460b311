-- Claim waiting commands of several partitions. Safe to repeat: what an answer that got lost had claimed
-- lies behind the `held` commands that the worker knows of, and is given out again before anything else.
--
-- KEYS[1] owners hash   KEYS[2] trials hash   KEYS[3] the worker's wake list
-- ARGV[1] worker id   ARGV[2] most commands   ARGV[3] most bytes   ARGV[4] most bytes of one   ARGV[5] job key prefix
-- ARGV[6] live Session key prefix   ARGV[7] owner key prefix   ARGV[8] queue key prefix   ARGV[9] claimed list prefix
-- ARGV[10] "", or the deaths that are too many: the one command that is asked for is noted as being tried alone
-- ARGV[11] most commands of one partition to hold
-- ARGV[12] most rings to take off the wake list
-- then per partition that is to be claimed from, or that commands are held of: number, commands held, and "yes" (claim
-- from it), "rung" (only if a ring names it, as from all others that one names), or "no" (not even then)
--
-- Reply: {rings, then per partition claimed from: its number, its answer}. The answer is false when the partition is
-- another worker's, else a list: 1 when more waits (else 0), then id, data, live owner per command; data is false when
-- the job is gone, its size in bytes when it is too large, -1 when the job's key is no hash, and -2 when too many
-- workers died over it. The live owner is false, {owner, session id, created_at, cwd or false}, or -1 when the job does
-- not say where its Session's would be registered.
local budget, bytes, most_of_one = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

local owners = {}
local function live_owner(session)
  if not session then
    return -1
  elseif owners[session] == nil then
    local live = redis.pcall('HMGET', ARGV[6] .. session, 'owner', 'session', 'created_at', 'cwd')
    -- Of a key that is no hash `live` is an error, and `live[1]` nil, which would end the reply early.
    owners[session] = live[1] and redis.call('EXISTS', ARGV[7] .. live[1]) == 1 and live or false
  end
  return owners[session]
end

-- A job's data and live owner; nil when it is readable, and too much for this reply.
local function read(id, first)
  local job = ARGV[5] .. id
  local size = redis.pcall('HSTRLEN', job, 'data')
  if type(size) ~= 'number' then
    return -1, -1
  elseif size > most_of_one then
    return size, -1
  elseif ARGV[10] ~= '' and (tonumber(redis.call('HGET', job, 'deaths')) or 0) >= tonumber(ARGV[10]) then
    return -2, -1
  elseif size == 0 then
    return redis.call('EXISTS', job) == 1 and '', -1
  elseif size > bytes and not first then
    return nil
  end
  bytes = bytes - size
  local found = redis.call('HMGET', job, 'data', 'session')
  return found[1], live_owner(found[2])
end

-- The ids to give out, and whether an earlier answer, which got lost, had claimed them.
local function next_ids(queue, claimed, held, most)
  if most <= 0 then
    return {}, false
  end
  local lost = redis.call('LRANGE', claimed, held, held + most - 1)
  if #lost > 0 then
    return lost, true
  end
  local ids = redis.pcall('LRANGE', queue, 0, most - 1)
  if ids.err then
    -- A key of another type in the queue's place holds no jobs: it gives way.
    redis.call('DEL', queue)
    return {}, false
  end
  return ids, false
end

local function claim(number, held)
  if redis.call('HGET', KEYS[1], number) ~= ARGV[1] then
    return false
  end
  local queue, claimed = ARGV[8] .. number, ARGV[9] .. number
  local most = math.max(0, math.min(budget, tonumber(ARGV[11]) - held))
  local ids, lost = next_ids(queue, claimed, held, most)
  local answer, taken = { 0 }, 0
  for i, id in ipairs(ids) do
    local data, owner = read(id, i == 1)
    if data == nil then
      break
    end
    answer[3 * i - 1], answer[3 * i], answer[3 * i + 1] = id, data, owner
    taken = i
  end
  if taken == 1 and not lost then
    redis.call('LMOVE', queue, claimed, 'LEFT', 'RIGHT')
  elseif taken > 0 and not lost then
    redis.call('LTRIM', queue, taken, -1)
    redis.call('RPUSH', claimed, unpack(ids, 1, taken))
  end
  if taken > 0 and ARGV[10] ~= '' then
    redis.call('HSET', KEYS[2], number, ids[1])
  end
  -- Fewer than were asked for are all that there were.
  answer[1] = (lost or #ids == most or taken < #ids) and redis.call('EXISTS', queue) or 0
  budget = budget - taken
  return answer
end

local rings = ARGV[12] ~= '0' and redis.pcall('LPOP', KEYS[3], ARGV[12]) or {}
if rings.err then
  -- Nobody can ring a key of another type, nor wait for it.
  redis.call('DEL', KEYS[3])
  rings = {}
end
local held, decided, wanted = {}, {}, {}
local function want(number)
  if not decided[number] then
    decided[number] = true
    wanted[#wanted + 1] = number
  end
end
for i = 13, #ARGV, 3 do
  held[ARGV[i]] = tonumber(ARGV[i + 1])
  if ARGV[i + 2] == 'yes' then
    want(ARGV[i])
  else
    decided[ARGV[i]] = ARGV[i + 2] == 'no'
  end
end
for _, ring in ipairs(rings) do
  if string.match(ring, '^%d%d?%d?%d?%d?$') then
    want(ring)
  end
end
local reply = { rings }
for _, number in ipairs(wanted) do
  reply[#reply + 1], reply[#reply + 2] = number, claim(number, held[number] or 0)
end
return reply
