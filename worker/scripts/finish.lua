-- Acknowledge a batch: result + event + job finished or failed, and the claim dropped. Atomic, and safe to repeat.
--
-- KEYS[1] owners hash, then per partition: claimed list, event stream, RQ's finished registry, RQ's failed registry,
--      then per Session that answers are about: its cached list
-- ARGV[1] worker name          ARGV[2] result TTL in seconds   ARGV[3] failure TTL in seconds
-- ARGV[4] events kept          ARGV[5] job key prefix          ARGV[6] result stream prefix
-- ARGV[7] now, as RQ writes times   ARGV[8] number of partitions   ARGV[9] TTL of a cached list
-- then per partition: its number, "1" to publish even past a gap (else "0"), number of commands, and
-- per command of it, in claim order: id, kind, and
--   kind "answered": result, revision, sequence, event
--   kind "failed":   traceback, failure, name for RQ's tools, ""
--   kind "gone":     "", "", "", ""        (its job no longer exists)
-- then per Session: its revision after these answers
--
-- Events are published by sequence, and answers given while one is owed, whether or not the command is still
-- claimed: the store has committed them. A failure stands nowhere but here: it counts only from the partition's
-- owner, since another one may be applying the command by now.
-- Reply: "ok", or {"gap", index of the partition, last sequence in its stream} and nothing was done: the
-- stream lost events that the store has, publish those first.
local FIELDS, FIRST, KEYS_EACH, SLICE = 6, 10, 4, 1000

local function last_sequence(stream)
  local info = redis.pcall('XINFO', 'STREAM', stream)
  if info.err and redis.call('EXISTS', stream) == 0 then
    return 0
  elseif info.err then
    return error(info)
  end
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then
      return tonumber(string.match(info[i + 1], '^%d+'))
    end
  end
end

-- The partitions, each with its keys, the places of its commands in ARGV, and the last sequence in its stream.
local partitions = {}
local at = FIRST
while #partitions < tonumber(ARGV[8]) do
  local first, commands = at + 3, tonumber(ARGV[at + 2])
  local claimed, stream, finished, failed = unpack(KEYS, KEYS_EACH * #partitions + 2, KEYS_EACH * #partitions + 5)
  local p = { number = ARGV[at], first = first, last = first + FIELDS * (commands - 1), commands = commands,
    claimed = claimed, stream = stream, finished = finished, failed = failed, only_answers = true }
  for i = first, p.last, FIELDS do
    if ARGV[i + 1] == 'answered' then
      local sequence = tonumber(ARGV[i + 4])
      p.published = p.published or last_sequence(stream)
      local known = p.next or p.published
      if ARGV[at + 1] ~= '1' and sequence > known + 1 then
        return { 'gap', #partitions + 1, p.published }
      end
      p.next = math.max(known, sequence)
    else
      p.only_answers = false
    end
  end
  partitions[#partitions + 1] = p
  at = p.last + FIELDS
end

-- The first event of a partition makes room for all of them.
local function publish(p, sequence, event)
  if p.trimmed then
    redis.call('XADD', p.stream, sequence .. '-0', 'event', event)
  else
    redis.call('XADD', p.stream, 'MAXLEN', '~', ARGV[4], sequence .. '-0', 'event', event)
  end
  p.published, p.trimmed = tonumber(sequence), true
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

-- Whether there was a job to end. `EXPIRE` tells: a hash must not come into being here.
local function end_job(job, ttl, ...)
  if redis.call('EXPIRE', job, ttl) == 0 then
    return false
  end
  local set = redis.pcall('HSET', job, 'ended_at', ARGV[7], 'worker_name', ARGV[1], ...)
  return type(set) == 'number'
end

-- Whether somebody may wait for an answer that no claim stands for any more.
local function is_owed(job, results)
  if redis.call('EXISTS', job) == 0 then
    return redis.call('EXISTS', results) == 0
  end
  return redis.pcall('HGET', job, 'status') == 'queued'
end

-- Whether a partition's commands are its oldest claims, in order, as they nearly always are: then all claims are
-- dropped at once, else one by one.
local function dropped_at_once(p)
  if p.commands == 1 or not (p.only_answers or p.mine) then
    return false
  end
  local oldest = redis.call('LRANGE', p.claimed, 0, p.commands - 1)
  for n = 1, p.commands do
    if oldest[n] ~= ARGV[p.first + FIELDS * (n - 1)] then
      return false
    end
  end
  redis.call('LTRIM', p.claimed, p.commands, -1)
  return true
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
    redis.call('EXPIRE', list, ARGV[9])
  end
end

local list = KEYS_EACH * #partitions + 1
for i = at, #ARGV do
  list = list + 1
  note_latest(KEYS[list], ARGV[i])
end

local time = redis.call('TIME')
local now = tonumber(time[1])
local result_ttl, failure_ttl = tonumber(ARGV[2]), tonumber(ARGV[3])

local function fail(p, i)
  -- RQ's tools stop at an id that is not of its kind, a key that is no hash, and a hash without data, and
  -- then list nothing at all: such a job is made one that they can show.
  local id, name = ARGV[i], ARGV[i + 4]
  local job, shown = ARGV[5] .. id, ARGV[5] .. name
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
  add_result(ARGV[6] .. name, failure_ttl, 'type', 2, 'exc_string', ARGV[i + 2], 'failure', ARGV[i + 3])
  if end_job(shown, failure_ttl, 'status', 'failed', 'failure', ARGV[i + 3]) then
    redis.pcall('ZADD', p.failed, now + failure_ttl, name)
  end
end

-- Note in RQ's registries what is finished, and forget what has expired. In slices: `unpack` takes some 8000 at most.
local function tidy_registries(p, ids)
  local expires = now + result_ttl
  for from = 1, #ids, SLICE do
    local scored = {}
    for n = from, math.min(from + SLICE - 1, #ids) do
      scored[#scored + 1], scored[#scored + 2] = expires, ids[n]
    end
    redis.pcall('ZADD', p.finished, unpack(scored))
  end
  if redis.call('EXISTS', p.failed) == 1 then
    for from = 1, #ids, SLICE do
      redis.pcall('ZREM', p.failed, unpack(ids, from, math.min(from + SLICE - 1, #ids)))
    end
    redis.pcall('ZREMRANGEBYSCORE', p.failed, '-inf', now)
  end
  redis.pcall('ZREMRANGEBYSCORE', p.finished, '-inf', now)
end

for _, p in ipairs(partitions) do
  p.mine = not p.only_answers and redis.call('HGET', KEYS[1], p.number) == ARGV[1]
  local all_dropped = dropped_at_once(p)
  local finished = {}
  for i = p.first, p.last, FIELDS do
    local id, kind = ARGV[i], ARGV[i + 1]
    if kind == 'answered' then
      if tonumber(ARGV[i + 4]) > p.published then
        publish(p, ARGV[i + 4], ARGV[i + 5])
      end
      -- Once for each copy that was delivered; and if the claim was lost with Redis's memory, for who still waits.
      local job, results = ARGV[5] .. id, ARGV[6] .. id
      if all_dropped or redis.call('LREM', p.claimed, -1, id) == 1 or is_owed(job, results) then
        add_result(results, result_ttl, 'type', 1, 'return_value', ARGV[i + 2], 'revision', ARGV[i + 3])
        if end_job(job, result_ttl, 'status', 'finished') then
          finished[#finished + 1] = id
        end
      end
    elseif p.mine and (all_dropped or redis.call('LREM', p.claimed, -1, id) == 1) and kind == 'failed' then
      fail(p, i)
    end
  end
  tidy_registries(p, finished)
end
return 'ok'
