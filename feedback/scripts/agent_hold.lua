-- Be a host's agent, or see who is: the first who comes serves for as long as it renews this. Safe to repeat.
--
-- KEYS[1] the host's registration   ARGV[1] agent id   ARGV[2] its log root   ARGV[3] TTL in milliseconds
--
-- Reply: {agent id, root} of the one who serves now.
local held = redis.pcall('HMGET', KEYS[1], 'agent', 'root')
-- What does not expire was written by none of ours, and what is no hash is no registration.
local counts = not held.err and held[1] and held[2] and redis.call('PTTL', KEYS[1]) >= 0
if counts and held[1] ~= ARGV[1] then
  return held
end
if not counts then
  redis.call('DEL', KEYS[1])
end
redis.call('HSET', KEYS[1], 'agent', ARGV[1], 'root', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return {ARGV[1], ARGV[2]}
