-- Claim waiting commands of several partitions. Safe to repeat: what an answer that got lost had claimed
-- lies behind the `held` commands that the worker knows of, and is given out again before anything else.
--
-- KEYS[1] owners hash   KEYS[2] trials hash, then per partition: queue, claimed list
-- ARGV[1] worker id   ARGV[2] most commands   ARGV[3] most bytes   ARGV[4] most bytes of one   ARGV[5] job key prefix
-- ARGV[6] live Session key prefix   ARGV[7] owner key prefix
-- ARGV[8] "", or the deaths that are too many: the one command that is asked for is noted as being tried alone
-- then per partition: number, commands held, most commands to hold
--
-- Reply: per partition false when it is another worker's, else a list: 1 when more waits (else 0), then
-- id, data, live owner per command; data is false when the job is gone, its size in bytes when it is too large, -1
-- when the job's key is no hash, and -2 when too many workers died over it. The live owner is false, {owner, session id,
-- created_at, cwd or false}, or -1 when the job does not say where its Session's would be registered.
local function owner_of(job)
  local session = redis.pcall('HGET', job, 'session')
  if type(session) ~= 'string' then
    return -1
  end
  local live = redis.pcall('HMGET', ARGV[6] .. session, 'owner', 'session', 'created_at', 'cwd')
  -- Of a key that is no hash `live` is an error, and `live[1]` nil, which would end the reply early.
  return live[1] and redis.call('EXISTS', ARGV[7] .. live[1]) == 1 and live or false
end

local budget, bytes = tonumber(ARGV[2]), tonumber(ARGV[3])
local reply = {}
for p = 1, (#KEYS - 2) / 2 do
  local queue, claimed = KEYS[2 * p + 1], KEYS[2 * p + 2]
  local number, held, room = ARGV[6 + 3 * p], tonumber(ARGV[7 + 3 * p]), tonumber(ARGV[8 + 3 * p])
  if redis.call('HGET', KEYS[1], number) ~= ARGV[1] then
    reply[p] = false
  else
    local answer = { 0 }
    local most = math.min(budget, room - held)
    local lost = most > 0 and redis.call('LRANGE', claimed, held, held + most - 1) or {}
    local ids = lost
    if #lost == 0 and most > 0 then
      ids = redis.pcall('LRANGE', queue, 0, most - 1)
      if ids.err then
        -- A key of another type in the queue's place holds no jobs: it gives way.
        redis.call('DEL', queue)
        ids = {}
      end
    end
    local taken = 0
    for _, id in ipairs(ids) do
      local job = ARGV[5] .. id
      local size = redis.pcall('HSTRLEN', job, 'data')
      local data = false
      if type(size) ~= 'number' then
        data = -1
      elseif size > tonumber(ARGV[4]) then
        data = size
      elseif ARGV[8] ~= '' and (tonumber(redis.call('HGET', job, 'deaths')) or 0) >= tonumber(ARGV[8]) then
        data = -2
      elseif taken > 0 and size > bytes then
        break
      elseif size > 0 then
        data = redis.call('HGET', job, 'data')
        bytes = bytes - size
      elseif redis.call('EXISTS', job) == 1 then
        data = ''
      end
      answer[#answer + 1], answer[#answer + 2], answer[#answer + 3] = id, data, data and owner_of(job)
      taken = taken + 1
    end
    if #lost == 0 and taken > 0 then
      redis.call('LTRIM', queue, taken, -1)
      redis.call('RPUSH', claimed, unpack(ids, 1, taken))
    end
    if ARGV[8] ~= '' and taken > 0 then
      redis.call('HSET', KEYS[2], number, ids[1])
    end
    budget = budget - taken
    answer[1] = redis.call('EXISTS', queue)
    reply[p] = answer
  end
end
return reply
