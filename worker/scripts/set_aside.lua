-- Take claimed commands off the claimed list, to wait among those of their Sessions that were set aside.
--
-- KEYS[1] owners hash   KEYS[2] claimed list   KEYS[3] sorted set of what was set aside
-- ARGV[1] worker id     ARGV[2] partition number   ARGV[3] job key prefix
-- then per command: digest of its Session, ">" (behind all others of it) or "<" (before them), id
--
-- A member is "<digest>:<place>:<id>", all scores are 0: so each Session's stand together, in order. The job says which
-- member it is, for hosts that ask whether it got lost (enqueue.lua).
-- Reply: 1, or 0 when the partition is another worker's (nothing was done).
local MIDDLE = 500000000000

if redis.call('HGET', KEYS[1], ARGV[2]) ~= ARGV[1] then
  return 0
end
if redis.call('TYPE', KEYS[3]).ok ~= 'zset' then
  redis.call('DEL', KEYS[3])
end
local function place(session, side)
  local low, high, read, step = '[' .. session .. ':', '(' .. session .. ';', 'ZRANGEBYLEX', -1
  if side == '>' then
    low, high, read, step = high, low, 'ZREVRANGEBYLEX', 1
  end
  local member = redis.call(read, KEYS[3], low, high, 'LIMIT', 0, 1)[1]
  return member and tonumber(string.sub(member, #session + 2, #session + 13)) + step or MIDDLE
end
for i = 4, #ARGV, 3 do
  local session, id = ARGV[i], ARGV[i + 2]
  if redis.call('LREM', KEYS[2], -1, id) == 1 then
    local member = string.format('%s:%012.0f:%s', session, place(session, ARGV[i + 1]), id)
    redis.call('ZADD', KEYS[3], 0, member)
    if redis.call('TYPE', ARGV[3] .. id).ok == 'hash' then
      redis.call('HSET', ARGV[3] .. id, 'aside', member)
    end
  end
end
return 1
