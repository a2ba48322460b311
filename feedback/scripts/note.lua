-- Note Sessions' revisions that were committed, before anybody is told of them: whoever reads a cached list without the
-- store is shown none that is older (feedback/scripts/read_list.lua). Safe to repeat.
--
-- KEYS the Sessions' cached lists   ARGV[1] TTL of a cached list in seconds, then a revision for each
for i, list in ipairs(KEYS) do
  local known = redis.pcall('HGET', list, 'latest')
  if type(known) == 'table' then
    redis.call('DEL', list) -- anybody's
    known = false
  end
  if (tonumber(known or '') or 0) < tonumber(ARGV[i + 1]) then
    redis.call('HSET', list, 'latest', ARGV[i + 1])
  end
  if not known then
    redis.call('EXPIRE', list, ARGV[1])
  end
end
return #KEYS
