-- Read cached lists. Writes nothing.
--
-- KEYS[1] era   KEYS[2…] one list entry per Session
-- Reply: era (nil when there is none), then per Session {revision, latest revision, body}, nil for what is not there or
-- of another era; or a text: what stands there is no hash.
local era = redis.call('GET', KEYS[1])
local found = { era }
for i = 2, #KEYS do
  local entry = redis.pcall('HMGET', KEYS[i], 'era', 'revision', 'latest', 'body')
  if entry.err then
    found[i] = entry.err
  elseif era and entry[1] == era then
    found[i] = { entry[2], entry[3], entry[4] }
  else
    found[i] = { false, entry[3], false }
  end
end
return found
