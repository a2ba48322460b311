-- Put a query to the projector. Safe to repeat: a query answered twice is read once.
--
-- KEYS[1] queries list   ARGV[1] query   ARGV[2] longest list allowed   ARGV[3] TTL in seconds
-- Reply: 1, or 0 when the list is full (nobody has been answering).
if redis.call('LLEN', KEYS[1]) >= tonumber(ARGV[2]) then
  return 0
end
redis.call('RPUSH', KEYS[1], ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[3])
return 1
