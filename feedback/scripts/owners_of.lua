-- The live owners of Sessions, those that have one.
--
-- KEYS registrations of live Sessions   ARGV[1] owner key prefix
-- Reply: per key false, or {owner, session id, created_at, cwd (false when there is none)}
local reply = {}
for i, key in ipairs(KEYS) do
  local live = redis.pcall('HMGET', key, 'owner', 'session', 'created_at', 'cwd')
  -- Of a key that is no hash `live` is an error, and `live[1]` nil, which would end the reply early.
  reply[i] = live[1] and redis.call('EXISTS', ARGV[1] .. live[1]) == 1 and live or false
end
return reply
