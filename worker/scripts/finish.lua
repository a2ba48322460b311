-- Acknowledge a batch: result + event + job finished or failed, and the claim dropped. Atomic, and safe to repeat.
--
-- KEYS per partition: claimed list, event stream, RQ's finished registry, RQ's failed registry, owners hash
--      then per Session that answers are about: its cached list
-- ARGV[1] worker name          ARGV[2] result TTL in seconds   ARGV[3] failure TTL in seconds
-- ARGV[4] events kept          ARGV[5] job key prefix          ARGV[6] result stream prefix
-- ARGV[7] now, as RQ writes times                              ARGV[8] per partition "1" (publish even past a gap) or "0"
-- ARGV[9] the partitions' numbers, each followed by a space
-- ARGV[10] the Sessions' revisions after these answers, each followed by a space   ARGV[11] TTL of a cached list
-- then per command, in claim order: index of its partition, id, kind, and
--   kind "answered": result, revision, sequence, event
--   kind "failed":   traceback, failure, name for RQ's tools, ""
--   kind "gone":     "", "", "", ""        (its job no longer exists)
--
-- Events are published by sequence, and answers given while one is owed, whether or not the command is still
-- claimed: the store has committed them. A failure stands nowhere but here: it counts only from the partition's
-- owner, since another one may be applying the command by now.
-- Reply: "ok", or {"gap", index of the partition, last sequence in its stream} and nothing was done: the
-- stream lost events that the store has, publish those first.
local FIELDS, FIRST, KEYS_EACH = 7, 12, 5
local partitions = #ARGV[8]

local function last_sequence(stream)
  if redis.call('EXISTS', stream) == 0 then
    return 0
  end
  local info = redis.call('XINFO', 'STREAM', stream)
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then
      return tonumber(string.match(info[i + 1], '^%d+'))
    end
  end
end

local last = {}
for i = FIRST, #ARGV, FIELDS do
  if ARGV[i + 2] == 'answered' then
    local p, sequence = tonumber(ARGV[i]), tonumber(ARGV[i + 5])
    last[p] = last[p] or { stream = last_sequence(KEYS[KEYS_EACH * (p - 1) + 2]) }
    local known = last[p].next or last[p].stream
    if string.sub(ARGV[8], p, p) ~= '1' and sequence > known + 1 then
      return { 'gap', p, last[p].stream }
    end
    last[p].next = math.max(known, sequence)
  end
end

-- What stands at a job's keys may be anybody's: nothing there may stop a batch half-way.
local function add_result(results, ttl, ...)
  local added = redis.pcall('XADD', results, 'MAXLEN', 10, '*', 'worker_name', ARGV[1], ...)
  if type(added) == 'table' and added.err then
    redis.call('DEL', results)
    redis.call('XADD', results, '*', 'worker_name', ARGV[1], ...)
  end
  redis.call('EXPIRE', results, ttl)
end

local function end_job(job, ttl, registry, id, expires, ...)
  if redis.call('TYPE', job).ok == 'hash' then
    redis.call('HSET', job, 'ended_at', ARGV[7], 'worker_name', ARGV[1], ...)
    redis.call('EXPIRE', job, ttl)
    redis.pcall('ZADD', registry, expires, id)
  end
end

-- Whether somebody may wait for an answer that no claim stands for any more.
local function is_owed(job, results)
  if redis.call('EXISTS', job) == 0 then
    return redis.call('EXISTS', results) == 0
  end
  return redis.pcall('HGET', job, 'status') == 'queued'
end

-- Whoever reads a cached list without the store must not be shown one that is older than an answer: the revision is
-- noted beside it before anybody can read the answer.
local function note_latest(list, revision)
  local known = redis.pcall('HGET', list, 'latest')
  if type(known) == 'table' then
    redis.call('DEL', list) -- anybody's
    known = false
  end
  if (tonumber(known or '') or 0) < tonumber(revision) then
    redis.call('HSET', list, 'latest', revision)
  end
  if not known then
    redis.call('EXPIRE', list, ARGV[11])
  end
end

local mine = {}
for number in string.gmatch(ARGV[9], '%d+') do
  mine[#mine + 1] = redis.call('HGET', KEYS[KEYS_EACH * (#mine + 1)], number) == ARGV[1]
end

local time = redis.call('TIME')
local now = tonumber(time[1])
local result_ttl, failure_ttl = tonumber(ARGV[2]), tonumber(ARGV[3])
local list = KEYS_EACH * partitions
for revision in string.gmatch(ARGV[10], '%d+') do
  list = list + 1
  note_latest(KEYS[list], revision)
end
for i = FIRST, #ARGV, FIELDS do
  local p, id, kind = tonumber(ARGV[i]), ARGV[i + 1], ARGV[i + 2]
  local claimed, stream, finished, failed = unpack(KEYS, KEYS_EACH * (p - 1) + 1, KEYS_EACH * p - 1)
  local job = ARGV[5] .. id
  if kind == 'answered' and tonumber(ARGV[i + 5]) > last[p].stream then
    last[p].stream = tonumber(ARGV[i + 5])
    redis.call('XADD', stream, 'MAXLEN', '~', ARGV[4], ARGV[i + 5] .. '-0', 'event', ARGV[i + 6])
  end
  if kind == 'answered' then
    -- Once for each copy that was delivered; and if the claim was lost with Redis's memory, for who still waits.
    if redis.call('LREM', claimed, -1, id) == 1 or is_owed(job, ARGV[6] .. id) then
      add_result(ARGV[6] .. id, result_ttl, 'type', 1, 'return_value', ARGV[i + 3], 'revision', ARGV[i + 4])
      end_job(job, result_ttl, finished, id, now + result_ttl, 'status', 'finished')
      redis.pcall('ZREM', failed, id)
    end
  elseif mine[p] and redis.call('LREM', claimed, -1, id) == 1 then
    if kind == 'failed' then
      -- RQ's tools stop at an id that is not of its kind, a key that is no hash, and a hash without data, and
      -- then list nothing at all: such a job is made one that they can show.
      local name = ARGV[i + 5]
      local shown = ARGV[5] .. name
      local found = redis.call('TYPE', job).ok
      if found ~= 'none' and found ~= 'hash' then
        redis.call('DEL', job)
      elseif found == 'hash' and name ~= id then
        redis.call('RENAME', job, shown)
      end
      if found ~= 'none' then
        redis.call('HSETNX', shown, 'data', '')
        redis.call('HDEL', shown, 'deaths') -- an operator's retry begins anew
        -- A Session's commands fail in queue order the first time: retried, they go back in this order.
        redis.call('HSETNX', shown, 'first_failed', time[1] .. string.format('%06d', time[2]) .. '-' .. i)
      end
      add_result(ARGV[6] .. name, failure_ttl, 'type', 2, 'exc_string', ARGV[i + 3])
      end_job(shown, failure_ttl, failed, name, now + failure_ttl, 'status', 'failed', 'failure', ARGV[i + 4])
    end
  end
end
for p = 1, partitions do
  redis.pcall('ZREMRANGEBYSCORE', KEYS[KEYS_EACH * p - 2], '-inf', now)
  redis.pcall('ZREMRANGEBYSCORE', KEYS[KEYS_EACH * p - 1], '-inf', now)
end
return 'ok'
