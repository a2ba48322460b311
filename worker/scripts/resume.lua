-- Claim again what was set aside of one Session, from its first command on.
--
-- KEYS[1] owners hash   KEYS[2] claimed list   KEYS[3] sorted set of what was set aside (set_aside.lua)
-- ARGV[1] worker id     ARGV[2] partition number   ARGV[3] job key prefix   ARGV[4] digest of the Session
-- ARGV[5] most commands ARGV[6] most bytes         ARGV[7] most bytes of one
-- Reply: false when the partition is another worker's, else 1 when more of the Session is left there (else 0), then id,
-- data per command. Data is false when the job is gone, its size in bytes when it is too large, -1 when the job's
-- key is no hash.
if redis.call('HGET', KEYS[1], ARGV[2]) ~= ARGV[1] then
  return false
end
if redis.call('TYPE', KEYS[3]).ok ~= 'zset' then
  return { 0 }
end
local session, most, bytes = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local low, high = '[' .. session .. ':', '(' .. session .. ';'
local reply, taken = { 0 }, 0
for _, member in ipairs(redis.call('ZRANGEBYLEX', KEYS[3], low, high, 'LIMIT', 0, most)) do
  local id = string.sub(member, #session + 15)
  local job = ARGV[3] .. id
  local size, data = redis.pcall('HSTRLEN', job, 'data'), false
  if type(size) ~= 'number' then
    data = -1
  elseif size > tonumber(ARGV[7]) then
    data = size
  elseif taken > 0 and size > bytes then
    break
  elseif redis.call('EXISTS', job) == 1 then
    data = redis.call('HGET', job, 'data') or ''
    bytes = bytes - size
  end
  redis.call('ZREM', KEYS[3], member)
  redis.call('RPUSH', KEYS[2], id)
  taken = taken + 1
  reply[2 * taken], reply[2 * taken + 1] = id, data
end
reply[1] = #redis.call('ZRANGEBYLEX', KEYS[3], low, high, 'LIMIT', 0, 1)
return reply
