-- A page of one failed registry, oldest failure first; what has expired is passed over. Changes nothing.
--
-- KEYS[1] RQ's failed registry
-- ARGV[1] most ids   ARGV[2] score and ARGV[3] id of the entry to continue behind, which need not be there any more
-- (ARGV[2] "-inf" and ARGV[3] "": from the beginning)
-- Reply: flat list of id, score.
if redis.call('TYPE', KEYS[1]).ok ~= 'zset' then
  return {}
end

-- As the server orders ids of one score: by their bytes, whatever the locale.
local function is_before(one, other)
  for i = 1, math.min(#one, #other) do
    local a, b = string.byte(one, i), string.byte(other, i)
    if a ~= b then
      return a < b
    end
  end
  return #one < #other
end

local low, high = redis.call('ZCOUNT', KEYS[1], '-inf', '(' .. ARGV[2]), redis.call('ZCOUNT', KEYS[1], '-inf', ARGV[2])
while low < high do
  local middle = math.floor((low + high) / 2)
  if is_before(ARGV[3], redis.call('ZRANGE', KEYS[1], middle, middle)[1]) then
    high = middle
  else
    low = middle + 1
  end
end
local first = math.max(low, redis.call('ZCOUNT', KEYS[1], '-inf', redis.call('TIME')[1]))
return redis.call('ZRANGE', KEYS[1], first, first + ARGV[1] - 1, 'WITHSCORES')
