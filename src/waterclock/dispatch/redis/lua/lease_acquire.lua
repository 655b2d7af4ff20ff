-- KEYS: lock, epoch. ARGV: host, port, token, lease in ms.
-- Answers {1, epoch, the server's time in ms} if the lease is ours now, else {0, who has it, for
-- how many ms more}.
local held = redis.call('GET', KEYS[1])
-- Our own token: an answer of ours was lost, and we do not lead. Take it anew, with a new epoch.
if held and cjson.decode(held).token ~= ARGV[3] then
  return {0, held, redis.call('PTTL', KEYS[1])}
end
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
-- Never below the time: a replica that was promoted may have missed the last epoch.
local epoch = math.max(tonumber(redis.call('GET', KEYS[2]) or '0') + 1, now_ms)
redis.call('SET', KEYS[2], string.format('%.0f', epoch))
local value = {host = ARGV[1], port = tonumber(ARGV[2]), token = ARGV[3], epoch = epoch}
redis.call('SET', KEYS[1], cjson.encode(value), 'PX', ARGV[4])
return {1, epoch, now_ms}
