-- Enqueue commands as RQ jobs, in order, each at most once while its job exists. Safe to repeat.
--
-- KEYS[1] topology hash        KEYS[2] RQ's set of queues
-- ARGV[1] generation           ARGV[2] partitions       (what the caller computed with)
-- ARGV[3] longest queue allowed                         ARGV[4] now, as RQ writes times
-- ARGV[5] RQ job key prefix    ARGV[6] queue key prefix ARGV[7] queue name prefix
-- ARGV[8] owners hash          ARGV[9] wake list prefix ARGV[10] wake TTL in seconds
-- ARGV[11] claimed list prefix ARGV[12] RQ result stream prefix
-- then per command: id, partition number, job data, digest, description, the Session's key digest
--
-- Reply: "stale" when the topology is another one (nothing was enqueued), else a list with one of
-- "enqueued", "known" (the job exists, same payload), "reused" (another payload), "full" per command.
local topology = redis.call('HMGET', KEYS[1], 'generation', 'partitions')
if topology[1] ~= ARGV[1] or topology[2] ~= ARGV[2] then
  return 'stale'
end
local limit = tonumber(ARGV[3])

-- Where an owner sets commands aside of Sessions that have to wait (worker/scripts/set_aside.lua).
local function aside_of(partition)
  return ARGV[11] .. partition .. ':aside'
end

-- A key of another type in a queue's place holds no jobs: it gives way.
local lengths, asides = {}, {}
local function queue_length(partition)
  if not lengths[partition] then
    local length = redis.pcall('LLEN', ARGV[6] .. partition)
    if type(length) ~= 'number' then
      redis.call('DEL', ARGV[6] .. partition)
      length = 0
    end
    lengths[partition] = length
  end
  return lengths[partition]
end

local function aside_size(partition)
  if not asides[partition] then
    local size = redis.pcall('ZCARD', aside_of(partition))
    asides[partition] = type(size) == 'number' and size or 0
  end
  return asides[partition]
end

-- A Session whose commands are set aside does not fill the queue of all others: there is a limit to what lies there.
local function is_full(partition, session)
  return queue_length(partition) >= limit or aside_size(partition) >= limit
    and #redis.call('ZRANGEBYLEX', aside_of(partition), '[' .. session .. ':', '(' .. session .. ';', 'LIMIT', 0, 1) > 0
end

local function push(id, partition)
  local queue = ARGV[6] .. partition
  lengths[partition] = redis.call('RPUSH', queue, id)
  -- A queue that was empty may have an idle owner: ring its bell.
  if lengths[partition] == 1 then
    redis.call('SADD', KEYS[2], queue)
    local owner = redis.call('HGET', ARGV[8], partition)
    if owner then
      redis.pcall('RPUSH', ARGV[9] .. owner, partition)
      redis.call('EXPIRE', ARGV[9] .. owner, ARGV[10])
    end
  end
end

-- Whether a job that is there can never be answered: the server lost the list that it was on, or the answer.
local function is_stranded(job, id, partition)
  local status = redis.call('HGET', job, 'status')
  if status == 'queued' then
    local member = redis.call('HGET', job, 'aside')
    if member and type(redis.pcall('ZSCORE', aside_of(partition), member)) == 'string' then
      return false
    end
    -- What is sent again is mostly what was sent last: from the end of the queue on.
    return not (redis.call('LPOS', ARGV[6] .. partition, id, 'RANK', -1)
      or redis.call('LPOS', ARGV[11] .. partition, id))
  end
  return status == 'finished' and redis.call('EXISTS', ARGV[12] .. id) == 0
end

-- Whether all that is known of an id is that its use with this digest was refused: another payload was first.
local function is_refusal(job)
  local failure = redis.call('HGET', job, 'failure')
  return failure and string.find(failure, 'CommandIdReused', 1, true)
end

local function enqueue(i, id, partition)
  local job = ARGV[5] .. id
  -- RQ's forking worker reckons with a timeout (its default is 180 s).
  redis.call('HSET', job, 'data', ARGV[i + 2], 'digest', ARGV[i + 3], 'status', 'queued',
    'origin', ARGV[7] .. partition, 'description', ARGV[i + 4], 'timeout', 180, 'session', ARGV[i + 5],
    'created_at', ARGV[4], 'enqueued_at', ARGV[4])
  push(id, partition)
  return 'enqueued'
end

-- What becomes of a command whose job is there already.
local function meet(i, id, partition)
  local job, digest = ARGV[5] .. id, ARGV[i + 3]
  local known = redis.call('HGET', job, 'digest')
  if known ~= digest and is_refusal(job) then
    if is_full(partition, ARGV[i + 5]) then
      return 'full'
    end
    redis.call('DEL', job)
    return enqueue(i, id, partition)
  elseif known and known ~= digest then
    return 'reused'
  end
  -- A write all the same: whoever waits until it is durable (WAITAOF) has waited for the first one, too.
  redis.call('HSET', job, 'digest', digest)
  -- What was applied before is answered from its record.
  if is_stranded(job, id, partition) then
    redis.call('HSET', job, 'status', 'queued')
    redis.call('PERSIST', job)
    push(id, partition)
  end
  return 'known'
end

local outcomes = {}
for i = 13, #ARGV, 6 do
  local id, partition = ARGV[i], ARGV[i + 1]
  local outcome = 'full'
  if redis.call('EXISTS', ARGV[5] .. id) == 1 then
    outcome = meet(i, id, partition)
  elseif not is_full(partition, ARGV[i + 5]) then
    outcome = enqueue(i, id, partition)
  end
  outcomes[#outcomes + 1] = outcome
end
return outcomes
