-- Publish recorded events of one partition that its stream does not have. Safe to repeat.
--
-- KEYS[1] event stream   ARGV[1] events kept in the stream, roughly
-- then per event, ascending: sequence, event
-- Reply: how many were new to the stream.
local added = 0
for i = 2, #ARGV, 2 do
  -- An id that is not past the stream's last one is refused: that event stands there already.
  local entry = redis.pcall('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], ARGV[i] .. '-0', 'event', ARGV[i + 1])
  if type(entry) ~= 'table' then
    added = added + 1
  elseif not string.find(entry.err, 'equal or smaller', 1, true) then
    return entry
  end
end
return added
