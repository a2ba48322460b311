-- What waits in partitions, and since when. Writes nothing.
--
-- KEYS per partition: its queue, its claimed list, what was set aside of it, RQ's registry of its failed jobs
-- ARGV[1] job key prefix
--
-- Reply: per partition {waiting, claimed, aside, failed, when the queue's first command was enqueued, when the first of
-- those that are claimed was}; a time is as RQ writes it, false when there is no such command. A key of another type
-- counts as empty.
local function count(command, key)
  local number = redis.pcall(command, key)
  return type(number) == 'number' and number or 0
end

local function enqueued(list)
  local id = redis.pcall('LINDEX', list, 0)
  local at = type(id) == 'string' and redis.pcall('HGET', ARGV[1] .. id, 'enqueued_at')
  return type(at) == 'string' and at
end

local reply = {}
for i = 1, #KEYS, 4 do
  local queue, claimed = KEYS[i], KEYS[i + 1]
  reply[#reply + 1] = {
    count('LLEN', queue), count('LLEN', claimed), count('ZCARD', KEYS[i + 2]), count('ZCARD', KEYS[i + 3]),
    enqueued(queue), enqueued(claimed),
  }
end
return reply
