-- Remove failed jobs for good, with their results. Each as a whole or not at all; safe to repeat.
--
-- ARGV[1] job key prefix   ARGV[2] result stream prefix
-- then per job: failed registry, id, token (dlq_read.lua; "" when there was no hash)
-- Reply: how many were removed. One that was retried meanwhile stays, also when it failed again.
local removed = 0
for i = 3, #ARGV, 3 do
  local registry, id, token = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local job = ARGV[1] .. id
  if redis.call('ZSCORE', registry, id) then
    local now = ''
    if redis.call('TYPE', job).ok == 'hash' then
      local fields = redis.call('HMGET', job, 'status', 'ended_at')
      now = fields[1] == 'failed' and redis.sha1hex(fields[2] or '') or 'waiting'
    end
    if now == token then
      redis.call('DEL', job, ARGV[2] .. id)
      redis.call('ZREM', registry, id)
      removed = removed + 1
    end
  end
end
return removed
