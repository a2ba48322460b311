-- Read on in event streams, up to a number of bytes. Writes nothing.
--
-- KEYS event streams
-- ARGV[1] bytes in all   ARGV[2] bytes that an entry counts for besides its event
-- ARGV[3] entries to take from a stream at once   ARGV[4...] per stream the id to go on behind
-- Reply: per stream {id, event, id, event, ...}. Each may take its share of what is left, so that none waits for another.
local left, aside, page = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local found = {}
for k = 1, #KEYS do
  local entries, share, after = {}, left / (#KEYS - k + 1), ARGV[3 + k]
  local more = true
  while more and share > 0 do
    local read = redis.call('XRANGE', KEYS[k], '(' .. after, '+', 'COUNT', page)
    for _, entry in ipairs(read) do
      after = entry[1]
      local event = ''
      for i = 1, #entry[2], 2 do
        if entry[2][i] == 'event' then
          event = entry[2][i + 1]
        end
      end
      entries[#entries + 1] = after
      entries[#entries + 1] = event
      share = share - #event - aside
      left = left - #event - aside
    end
    more = #read == page
  end
  found[k] = entries
end
return found
