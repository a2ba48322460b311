-- Move one job from a queue of a retired generation to the end of its queue of the current one. Safe to repeat.
--
-- KEYS[1] old queue   KEYS[2] new queue   KEYS[3] job   KEYS[4] RQ's set of queues   KEYS[5] owners hash
-- ARGV[1] id   ARGV[2] name of the new queue   ARGV[3] its partition's number
-- ARGV[4] wake list prefix   ARGV[5] wake TTL in seconds
-- Reply: 1 when it was moved.
if redis.call('LREM', KEYS[1], 1, ARGV[1]) == 0 then
  return 0
end
if redis.call('TYPE', KEYS[3]).ok == 'hash' then
  redis.call('HSET', KEYS[3], 'origin', ARGV[2])
end
if redis.call('RPUSH', KEYS[2], ARGV[1]) == 1 then
  redis.call('SADD', KEYS[4], KEYS[2])
  local owner = redis.call('HGET', KEYS[5], ARGV[3])
  if owner then
    redis.pcall('RPUSH', ARGV[4] .. owner, ARGV[3])
    redis.call('EXPIRE', ARGV[4] .. owner, ARGV[5])
  end
end
return 1
