-- Store cached lists, and the checkpoints that they bring the projection to, in one step.
-- Safe to repeat: a list only replaces an older one, and checkpoints are compared before anything is written.
--
-- KEYS[1]  era string: entries of another era count as absent
-- KEYS[2]  checkpoint hash of one generation: partition number -> sequence (absent: 0)
-- KEYS[3…] one list entry per view
-- ARGV[1]  era that the views were made in     ARGV[2] TTL of an entry in seconds
-- ARGV[3]  number of checkpoints, then for each: partition number, sequence expected, sequence reached
-- then per view: revision, body ('' when the list is too long to be cached: an older entry is dropped), and "1" when the
--   entry bore a latest revision as the view's making began: if it does not any more, nobody knows what was noted since
--
-- Reply: 1; 2 when a view was left out for that; or 0 when the era or a checkpoint is another one (nothing was written).
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
local views = 4 + 3 * tonumber(ARGV[3])
for i = 4, views - 1, 3 do
  if (redis.call('HGET', KEYS[2], ARGV[i]) or '0') ~= ARGV[i + 1] then
    return 0
  end
end
local reply = 1
for k = 3, #KEYS do
  local key, i = KEYS[k], views + 3 * (k - 3)
  local revision, body = ARGV[i], ARGV[i + 1]
  local entry = redis.pcall('HMGET', key, 'era', 'revision', 'latest')
  if entry.err then
    redis.call('DEL', key)
    entry = {}
  end
  local cached = entry[1] == ARGV[1] and tonumber(entry[2] or '')
  local latest = tonumber(entry[3] or '')
  if ARGV[i + 2] == '1' and not latest then
    reply = 2
  else
    -- The latest revision that anybody was told of never goes back, whatever era the list is of.
    local newest = latest and latest >= tonumber(revision) and entry[3] or revision
    if cached and cached >= tonumber(revision) then
      redis.call('HSET', key, 'latest', newest)
    elseif body ~= '' then
      redis.call('HSET', key, 'era', ARGV[1], 'revision', revision, 'latest', newest, 'body', body)
    else
      redis.call('HSET', key, 'latest', newest)
      redis.call('HDEL', key, 'era', 'revision', 'body')
    end
    redis.call('EXPIRE', key, ARGV[2])
  end
end
for i = 4, views - 1, 3 do
  redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 2])
end
return reply
