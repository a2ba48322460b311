-- Put failed commands back on the queues where their Sessions are served now, in order. Each as a whole or not at
-- all, and once however often this is run.
--
-- KEYS[1] topology hash   KEYS[2] RQ's set of queues   KEYS[3] owners hash of that generation
-- ARGV[1] generation      ARGV[2] partitions           (what the caller computed with)
-- ARGV[3] longest queue allowed                        ARGV[4] now, as RQ writes times
-- ARGV[5] job key prefix  ARGV[6] queue key prefix     ARGV[7] queue name prefix
-- ARGV[8] wake list prefix                             ARGV[9] wake TTL in seconds
-- then per command: failed registry, id, token (dlq_read.lua), partition number, when it failed first
--
-- Reply: "stale" when the topology is another one (nothing was done), else a list with one of "retried",
-- "absent" (not failed any more, or retried and failed again), "full" per command.
local topology = redis.call('HMGET', KEYS[1], 'generation', 'partitions')
if topology[1] ~= ARGV[1] or topology[2] ~= ARGV[2] then
  return 'stale'
end

local function is_failed(registry, id, job, token)
  if not redis.call('ZSCORE', registry, id) or redis.call('TYPE', job).ok ~= 'hash' then
    return false
  end
  local fields = redis.call('HMGET', job, 'status', 'ended_at')
  return fields[1] == 'failed' and redis.sha1hex(fields[2] or '') == token
end

-- A key of another type in a queue's place holds no jobs: it gives way.
local function queue_length(queue)
  local length = redis.pcall('LLEN', queue)
  if type(length) == 'number' then
    return length
  end
  redis.call('DEL', queue)
  return 0
end

local limit = tonumber(ARGV[3])
local full, outcomes = {}, {}
for i = 10, #ARGV, 5 do
  local registry, id, number = ARGV[i], ARGV[i + 1], ARGV[i + 3]
  local job, queue = ARGV[5] .. id, ARGV[6] .. number
  local outcome = 'absent'
  if is_failed(registry, id, job, ARGV[i + 2]) then
    -- Once one did not fit, no later one may go before it.
    full[number] = full[number] or queue_length(queue) >= limit
    outcome = 'full'
    if not full[number] then
      local length = redis.call('RPUSH', queue, id)
      redis.call('HSET', job, 'status', 'queued', 'origin', ARGV[7] .. number, 'enqueued_at', ARGV[4])
      redis.call('HDEL', job, 'failure', 'started_at', 'ended_at', 'worker_name', 'exc_info')
      -- Failing again, it keeps its place; RQ itself notes only when that was.
      redis.call('HSETNX', job, 'first_failed', ARGV[i + 4])
      redis.call('PERSIST', job)
      redis.call('ZREM', registry, id)
      if length == 1 then
        redis.call('SADD', KEYS[2], queue)
        local owner = redis.call('HGET', KEYS[3], number)
        if owner then
          redis.pcall('RPUSH', ARGV[8] .. owner, number)
          redis.call('EXPIRE', ARGV[8] .. owner, ARGV[9])
        end
      end
      outcome = 'retried'
    end
  end
  outcomes[#outcomes + 1] = outcome
end
return outcomes
