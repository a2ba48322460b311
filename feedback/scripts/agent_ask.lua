-- Ask the agents of hosts, of those that have one. Asking again is harmless.
--
-- KEYS per request: its host's registration, its host's list of requests
-- ARGV[1] TTL of a list in seconds   ARGV[2] most requests that may wait (the oldest make room)
-- ARGV[3...] requests
--
-- Reply: per request {agent id, root}, or false: the host has no agent, and nothing was asked.
local reply = {}
for i = 1, #KEYS / 2 do
  local list = KEYS[2 * i]
  local agent = redis.pcall('HMGET', KEYS[2 * i - 1], 'agent', 'root')
  reply[i] = false
  -- A key of another type is nobody's registration; one in the list's place gives way.
  if not agent.err and agent[1] and agent[2] then
    if type(redis.pcall('RPUSH', list, ARGV[i + 2])) ~= 'number' then
      redis.call('DEL', list)
      redis.call('RPUSH', list, ARGV[i + 2])
    end
    redis.call('LTRIM', list, -ARGV[2], -1)
    redis.call('EXPIRE', list, ARGV[1])
    reply[i] = agent
  end
end
return reply
