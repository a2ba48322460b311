-- Put what was set aside of a partition back at the head of its queue, each Session's commands in order: a part at a
-- time, the last ones first, so that at any moment the queue begins where what is left ends. Safe to repeat.
--
-- KEYS[1] owners hash   KEYS[2] sorted set of what was set aside (set_aside.lua)   KEYS[3] queue
-- ARGV[1] worker id     ARGV[2] partition number   ARGV[3] most commands
-- Reply: how many are left, or false when the partition is another worker's.
if redis.call('HGET', KEYS[1], ARGV[2]) ~= ARGV[1] then
  return false
end
for i, expected in ipairs({ 'zset', 'list' }) do
  local kind = redis.call('TYPE', KEYS[i + 1]).ok
  if kind ~= expected and kind ~= 'none' then
    redis.call('DEL', KEYS[i + 1])
  end
end
for _, member in ipairs(redis.call('ZREVRANGE', KEYS[2], 0, ARGV[3] - 1)) do
  redis.call('LPUSH', KEYS[3], string.match(member, '^%x+:%d+:(.*)$'))
  redis.call('ZREM', KEYS[2], member)
end
return redis.call('ZCARD', KEYS[2])
