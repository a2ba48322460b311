-- Be a host's agent no more; another one's registration is left alone. Safe to repeat.
--
-- KEYS[1] the host's registration   ARGV[1] agent id
if redis.pcall('HGET', KEYS[1], 'agent') == ARGV[1] then
  redis.call('DEL', KEYS[1])
end
return 1
