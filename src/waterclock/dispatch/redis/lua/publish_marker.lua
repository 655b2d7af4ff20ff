-- KEYS: fence. ARGV: epoch, channel, marker. Publishes a marker of the leader; answers the server's time
-- in ms.
redis.call('PUBLISH', ARGV[2], ARGV[3])
local time = redis.call('TIME')
return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
