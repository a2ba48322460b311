-- Read a Session's cached list, if it is current. Writes nothing.
--
-- KEYS[1] the list's entry   KEYS[2] era
-- Reply: {revision, body}; nil when nothing is cached, or what is cached may be older than what callers were told.
local entry = redis.pcall('HMGET', KEYS[1], 'era', 'revision', 'latest', 'body')
local era = redis.pcall('GET', KEYS[2])
-- Who acknowledges a command notes its revision as the latest before anybody hears of it.
if entry.err or not entry[4] or entry[1] ~= era or entry[2] ~= entry[3] then
  return false
end
-- An era is of one server as long as it is the primary: after a restart or a failover, what is cached and what is
-- noted may be as old as the copy of the data that the server began with.
local replication = redis.call('INFO', 'replication')
local history = 'master_replid:' .. string.match(era, '^%x*')
if not string.find(replication, 'role:master', 1, true) or not string.find(replication, history .. '\r', 1, true) then
  return false
end
return { entry[2], entry[4] }
