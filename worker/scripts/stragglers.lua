-- Jobs on a queue of a retired generation, to be moved to the current one. Safe to repeat.
--
-- KEYS[1] queue   KEYS[2] claimed list of the same partition   KEYS[3] what was set aside of it (set_aside.lua)
-- ARGV[1] most jobs   ARGV[2] most bytes of one   ARGV[3] job key prefix
-- Reply: flat list of id, data; data is false when the job is gone or is not readable.
local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'list' and kind ~= 'none' then
  redis.call('DEL', KEYS[1]) -- it holds no jobs
end
-- Neither is left when a generation is retired; a server that was set back may bring it all the same.
if redis.call('TYPE', KEYS[3]).ok == 'zset' then
  for _, member in ipairs(redis.call('ZREVRANGE', KEYS[3], 0, -1)) do
    redis.call('LPUSH', KEYS[1], string.match(member, '^%x+:%d+:(.*)$'))
  end
  redis.call('DEL', KEYS[3])
end
while redis.call('LMOVE', KEYS[2], KEYS[1], 'RIGHT', 'LEFT') do end
local reply = {}
for _, id in ipairs(redis.call('LRANGE', KEYS[1], 0, ARGV[1] - 1)) do
  local job = ARGV[3] .. id
  local size = redis.pcall('HSTRLEN', job, 'data')
  local fits = type(size) == 'number' and size > 0 and size <= tonumber(ARGV[2])
  reply[#reply + 1], reply[#reply + 2] = id, fits and redis.call('HGET', job, 'data')
end
return reply
