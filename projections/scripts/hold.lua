-- Be the follower that is at work, or see that another one is: the first who comes, as long as it renews this. Safe to repeat.
--
-- KEYS[1] the lease   ARGV[1] own token, `<id>:<TTL>`   ARGV[2] TTL in milliseconds
--
-- Reply: 1 when the lease is one's own now, else 0.
local holder = redis.pcall('GET', KEYS[1])
if type(holder) == 'string' and holder ~= ARGV[1] then
  -- What does not end with the TTL that its holder gave it outlives it: no holder's, or the server's clock was put back.
  local ttl = tonumber(string.match(holder, ':(%d+)$'))
  local left = redis.call('PTTL', KEYS[1])
  if ttl and left >= 0 and left <= ttl then
    return 0
  end
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
