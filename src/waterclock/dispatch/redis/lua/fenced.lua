-- Stands before every script that only the present leader may run, or a worker in its name.
-- KEYS[1]: the fence; ARGV[1]: the caller's epoch. A higher epoch than the fence's raises it, so
-- that a server that forgot it (failover) learns it from the first who writes.
local epoch = tonumber(ARGV[1])
local fence = tonumber(redis.call('GET', KEYS[1]) or '0')
if epoch < fence then
  return redis.error_reply('STALE epoch ' .. ARGV[1] .. ' is below ' .. string.format('%.0f', fence))
end
if epoch > fence then
  redis.call('SET', KEYS[1], ARGV[1])
end
