-- Register Sessions with their live owner, or renew them, and renew the owner. Safe to repeat.
--
-- KEYS[1] the owner's key   KEYS[2...] registrations of the Sessions
-- ARGV[1] owner id   ARGV[2] owner TTL in milliseconds   ARGV[3] Session TTL in seconds   ARGV[4] owner key prefix
-- then per Session: "take" (whoever holds it) or "keep" (unless another live owner does), Session id,
-- created_at, cwd behind a "=" (empty: there is none)
--
-- Reply: {whether the owner was still known, per Session 1 or 0 (another live owner holds it)}
local known = redis.call('EXISTS', KEYS[1])
redis.call('SET', KEYS[1], '1', 'PX', ARGV[2])
local reply = {known}
for i = 2, #KEYS do
  local at = 5 + 4 * (i - 2)
  -- A key of another type is nobody's registration, and is written over.
  local holder = redis.pcall('HGET', KEYS[i], 'owner')
  if type(holder) ~= 'string' then
    holder = nil
  end
  if holder == ARGV[1] and ARGV[at] == 'keep' then
    redis.call('EXPIRE', KEYS[i], ARGV[3])
    reply[i] = 1
  elseif holder and ARGV[at] == 'keep' and redis.call('EXISTS', ARGV[4] .. holder) == 1 then
    reply[i] = 0
  else
    redis.call('DEL', KEYS[i])
    redis.call('HSET', KEYS[i], 'owner', ARGV[1], 'session', ARGV[at + 1], 'created_at', ARGV[at + 2])
    if ARGV[at + 3] ~= '' then
      redis.call('HSET', KEYS[i], 'cwd', string.sub(ARGV[at + 3], 2))
    end
    redis.call('EXPIRE', KEYS[i], ARGV[3])
    reply[i] = 1
  end
end
return reply
