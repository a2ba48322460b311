-- Remove the registrations of Sessions that are still this owner's; in the end, the owner too. Safe to repeat.
--
-- KEYS[1] the owner's key   KEYS[2] its list of flush requests   KEYS[3...] registrations of the Sessions
-- ARGV[1] owner id   ARGV[2] "1" when the owner goes away   ARGV[3] TTL of the list in seconds
--
-- An owner that goes away finds an empty entry at the end of its list: nobody who looked it up later put any there.
-- Reply: how many were removed.
local removed = 0
for i = 3, #KEYS do
  if redis.pcall('HGET', KEYS[i], 'owner') == ARGV[1] then
    removed = removed + redis.call('DEL', KEYS[i])
  end
end
if ARGV[2] == '1' then
  redis.call('DEL', KEYS[1])
  redis.call('RPUSH', KEYS[2], '')
  redis.call('EXPIRE', KEYS[2], ARGV[3])
end
return removed
