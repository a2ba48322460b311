-- Put back what a partition's last owner had claimed and not finished, at the head of the queue, in order.
-- Safe to repeat.
--
-- KEYS[1] owners hash   KEYS[2] claimed list   KEYS[3] queue   KEYS[4] event stream   KEYS[5] trials hash
-- ARGV[1] worker id     ARGV[2] partition number   ARGV[3] job key prefix
-- ARGV[4] "1" when the last owner ended without finishing, which counts as a death over what it tried alone; else "0"
-- Reply: {commands put back, last sequence in the event stream (0: none), 1 when owners ended twice in a row over claims
-- of theirs (else 0)}, or false when the partition is another worker's.
if redis.call('HGET', KEYS[1], ARGV[2]) ~= ARGV[1] then
  return false
end
-- A key of another type holds nothing of ours, and would keep the whole worker from its work.
for i, expected in ipairs({ 'list', 'list', 'stream', 'hash' }) do
  local kind = redis.call('TYPE', KEYS[i + 1]).ok
  if kind ~= expected and kind ~= 'none' then
    redis.call('DEL', KEYS[i + 1])
  end
end
local bereft, tried = ARGV[4] == '1', redis.call('HGET', KEYS[5], ARGV[2])
local again = (bereft and tried) and 1 or 0
local recovered, id = 0, redis.call('LMOVE', KEYS[2], KEYS[3], 'RIGHT', 'LEFT')
while id do
  if bereft and id == tried and redis.call('TYPE', ARGV[3] .. id).ok == 'hash' then
    redis.pcall('HINCRBY', ARGV[3] .. id, 'deaths', 1)
    tried = false
  end
  recovered, id = recovered + 1, redis.call('LMOVE', KEYS[2], KEYS[3], 'RIGHT', 'LEFT')
end
if bereft and recovered > 0 then
  redis.call('HSET', KEYS[5], ARGV[2], '')
else
  redis.call('HDEL', KEYS[5], ARGV[2])
end
if redis.call('EXISTS', KEYS[4]) == 0 then
  return {recovered, 0, again}
end
local info = redis.call('XINFO', 'STREAM', KEYS[4])
for i = 1, #info, 2 do
  if info[i] == 'last-generated-id' then
    return {recovered, tonumber(string.match(info[i + 1], '^%d+')), again}
  end
end
