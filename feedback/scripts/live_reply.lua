-- Push a live owner's replies on the wake lists of the workers that asked. Safe to repeat: a worker takes one.
--
-- KEYS wake lists, one per reply (perhaps repeatedly)   ARGV[1] wake TTL in seconds   ARGV[2...] replies
-- Reply: how many were pushed. A list that a stranger made a key of another type takes none.
local pushed = 0
for i, key in ipairs(KEYS) do
  if type(redis.pcall('RPUSH', key, ARGV[i + 1])) == 'number' then
    redis.call('EXPIRE', key, ARGV[1])
    pushed = pushed + 1
  end
end
return pushed
