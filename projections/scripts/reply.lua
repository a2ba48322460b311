-- Put answers on the lists of those who asked. Safe to repeat: whoever asked takes one answer.
--
-- KEYS the askers' reply lists   ARGV[1] TTL in seconds   ARGV[2...] answers, one per list
-- Reply: how many were put there. A key that a stranger made one of another type takes none.
local put = 0
for i, key in ipairs(KEYS) do
  if type(redis.pcall('RPUSH', key, ARGV[i + 1])) == 'number' then
    redis.call('EXPIRE', key, ARGV[1])
    put = put + 1
  end
end
return put
