-- What stands in failed jobs, each field up to a bound. Changes nothing.
--
-- ARGV[1] most bytes of one job's data   ARGV[2] most bytes of another field   ARGV[3] most bytes of data altogether
-- ARGV[4] job key prefix                 ARGV[5] result stream prefix
-- then ids
--
-- Reply: per id a list, or fewer when their data would be too much at once (ask again for the rest):
-- {"gone"} (no such job), {"other"} (its key is no hash), or
-- {status, data (its size when it is too large), failure, created_at, ended_at, first_failed, token, failures}
-- with false for a field that is missing or too large. `token` is another one once the job was retried.
local function field(job, name, most)
  local size = redis.call('HSTRLEN', job, name)
  return size > 0 and size <= most and redis.call('HGET', job, name)
end

local most_data, most, bytes = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local reply = {}
for i = 6, #ARGV do
  local job = ARGV[4] .. ARGV[i]
  local found = redis.call('TYPE', job).ok
  if found == 'hash' then
    local data = redis.call('HSTRLEN', job, 'data')
    if data <= most_data then
      if #reply > 0 and data > bytes then
        break
      end
      bytes = bytes - data
      data = redis.call('HGET', job, 'data') or ''
    end
    local failures = redis.pcall('XLEN', ARGV[5] .. ARGV[i])
    reply[#reply + 1] = {
      field(job, 'status', most), data, field(job, 'failure', most), field(job, 'created_at', most),
      field(job, 'ended_at', most), field(job, 'first_failed', most),
      redis.sha1hex(redis.call('HGET', job, 'ended_at') or ''), type(failures) == 'number' and failures or 0,
    }
  else
    reply[#reply + 1] = { found == 'none' and 'gone' or 'other' }
  end
end
return reply
