-- Store cached lists, and the checkpoints that they bring the projection to, in one step.
-- Safe to repeat: a list only replaces an older one, and checkpoints are compared before anything is written.
--
-- KEYS[1]  era string: entries of another era count as absent
-- KEYS[2]  checkpoint hash of one generation: partition number -> sequence (absent: 0)
-- KEYS[3…] one list entry per view
-- ARGV[1]  era that the views were made in     ARGV[2] TTL of an entry in seconds
-- ARGV[3]  number of checkpoints, then for each: partition number, sequence expected, sequence reached
-- then per view: revision, body ('' when the list is too long to be cached: an older entry is dropped)
--
-- Reply: 1; or 0 when the era or a checkpoint is another one (nothing was written).
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
local moves = 4 + 3 * tonumber(ARGV[3])
for i = 4, moves - 1, 3 do
  if (redis.call('HGET', KEYS[2], ARGV[i]) or '0') ~= ARGV[i + 1] then
    return 0
  end
end
for k = 3, #KEYS do
  local key = KEYS[k]
  local revision, body = ARGV[moves + 2 * (k - 3)], ARGV[moves + 2 * (k - 3) + 1]
  local newer = true
  if redis.call('TYPE', key)['ok'] == 'hash' then
    local cached = redis.call('HMGET', key, 'era', 'revision')
    local known = tonumber(cached[2] or '')
    newer = cached[1] ~= ARGV[1] or not known or known < tonumber(revision)
  end
  if newer then
    redis.call('DEL', key)
    if body ~= '' then
      redis.call('HSET', key, 'era', ARGV[1], 'revision', revision, 'body', body)
      redis.call('EXPIRE', key, ARGV[2])
    end
  end
end
for i = 4, moves - 1, 3 do
  redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 2])
end
return 1
