-- A worker leaves: end its session and tell the others. Safe to repeat.
--
-- KEYS[1] its session   KEYS[2] set of workers   KEYS[3] its wake list
-- ARGV[1] worker id   ARGV[2] wake list prefix   ARGV[3] wake TTL in seconds
redis.call('DEL', KEYS[1], KEYS[3])
redis.call('SREM', KEYS[2], ARGV[1])
for _, member in ipairs(redis.call('SMEMBERS', KEYS[2])) do
  redis.pcall('RPUSH', ARGV[2] .. member, 'lease')
  redis.call('EXPIRE', ARGV[2] .. member, ARGV[3])
end
return 1
