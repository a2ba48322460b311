-- The sequence of each event stream's last entry, 0 where there is none. Reads only.
--
-- KEYS event streams
-- Reply: one number per key. The entries themselves, which may be large, stay here.
local found = {}
for i, stream in ipairs(KEYS) do
  found[i] = 0
  if redis.call('TYPE', stream).ok == 'stream' then
    local info = redis.call('XINFO', 'STREAM', stream)
    for field = 1, #info, 2 do
      if info[field] == 'last-generated-id' then
        found[i] = tonumber(string.match(info[field + 1], '^%d+'))
      end
    end
  end
end
return found
