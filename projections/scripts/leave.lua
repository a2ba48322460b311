-- Be the follower at work no more; another one's lease is left alone. Safe to repeat.
--
-- KEYS[1] the lease   ARGV[1] own token
if redis.pcall('GET', KEYS[1]) == ARGV[1] then
  redis.call('DEL', KEYS[1])
end
return 1
