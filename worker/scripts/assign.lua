-- Acquire and release partitions of one generation by compare-and-set, and tell the other workers. Safe to repeat.
--
-- KEYS[1] owners hash   KEYS[2] set of workers
-- ARGV[1] worker id   ARGV[2] session key prefix   ARGV[3] wake list prefix   ARGV[4] wake TTL in seconds
-- then per partition: "acquire" or "release", number, owner seen there ("" for none), that owner's beat ("" for none)
--
-- An owner whose session still stands is displaced only if its beat is the one that was seen to stop, or if the
-- beat given is "*" (by force: the fence in the store keeps the displaced owner from committing).
-- Reply: the numbers that this worker now owns of those it asked for.
local me = ARGV[1]
local granted, changed = {}, false
for i = 5, #ARGV, 4 do
  local number, seen, beat = ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local owner = redis.call('HGET', KEYS[1], number) or ''
  if ARGV[i] == 'release' then
    if owner == me then
      redis.call('HDEL', KEYS[1], number)
      changed = true
    end
  elseif owner == me then
    granted[#granted + 1] = number
  elseif owner == seen then
    local now = owner ~= '' and redis.call('GET', ARGV[2] .. owner)
    if not now or now == beat or beat == '*' then
      redis.call('HSET', KEYS[1], number, me)
      granted[#granted + 1] = number
      changed = true
    end
  end
end
if changed then
  for _, member in ipairs(redis.call('SMEMBERS', KEYS[2])) do
    if member ~= me then
      redis.pcall('RPUSH', ARGV[3] .. member, 'lease')
      redis.call('EXPIRE', ARGV[3] .. member, ARGV[4])
    end
  end
end
return granted
