-- One worker's heartbeat: say that it lives, see who else does and who owns what. Safe to repeat.
--
-- KEYS[1] this worker's session   KEYS[2] set of workers   KEYS[3] owners hash
-- KEYS[4] this worker's wake list KEYS[5] topology hash    KEYS[6...] queues that it watches
-- ARGV[1] worker id   ARGV[2] beat   ARGV[3] lease TTL in milliseconds
-- ARGV[4] session key prefix   ARGV[5] wake TTL in seconds   ARGV[6] wake list prefix
--
-- The other workers are told when this one is new among them.
-- What hosts may write as well, a topology of another type, gives way here.
-- Reply: {owners (flat number, id pairs), live worker ids, their beats, generation (false: no topology)}
local generation = redis.pcall('HGET', KEYS[5], 'generation')
if type(generation) == 'table' then
  redis.call('DEL', KEYS[5])
  generation = false
end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
local joined = redis.call('SADD', KEYS[2], ARGV[1]) == 1
local members = redis.call('SMEMBERS', KEYS[2])
if joined then
  for _, member in ipairs(members) do
    if member ~= ARGV[1] then
      redis.pcall('RPUSH', ARGV[6] .. member, 'lease')
      redis.call('EXPIRE', ARGV[6] .. member, ARGV[5])
    end
  end
end
local sessions = {}
for i, member in ipairs(members) do
  sessions[i] = ARGV[4] .. member
end
local beats = redis.call('MGET', unpack(sessions))
local live, live_beats = {}, {}
for i, member in ipairs(members) do
  if beats[i] then
    live[#live + 1], live_beats[#live_beats + 1] = member, beats[i]
  else
    redis.call('SREM', KEYS[2], member)
  end
end
-- Jobs that were queued without our enqueue script (RQ's requeue, a foreign producer) ring no bell.
-- In slices: `unpack` takes some 8000 at most, and two generations may have more queues.
local waiting = false
for i = 6, #KEYS, 4000 do
  waiting = waiting or redis.call('EXISTS', unpack(KEYS, i, math.min(i + 3999, #KEYS))) > 0
end
if waiting and redis.pcall('LLEN', KEYS[4]) == 0 then
  redis.call('RPUSH', KEYS[4], '*')
  redis.call('EXPIRE', KEYS[4], ARGV[5])
end
return {redis.call('HGETALL', KEYS[3]), live, live_beats, generation}
