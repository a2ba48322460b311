-- The traceback of a job's last failure, as RQ spells it. Changes nothing.
--
-- KEYS[1] result stream   ARGV[1] most bytes
-- Reply: the text, its size when it is too large, or false when there is none.
if redis.call('TYPE', KEYS[1]).ok ~= 'stream' then
  return false
end
for _, entry in ipairs(redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 10)) do
  for i = 1, #entry[2], 2 do
    if entry[2][i] == 'exc_string' then
      local text = entry[2][i + 1]
      return #text <= tonumber(ARGV[1]) and text or #text
    end
  end
end
return false
