-- KEYS: fence, source. ARGV: epoch, group, consumer, count. Answers the server's time in ms, and
-- entries nobody has read yet.
local got = redis.call('XREADGROUP', 'GROUP', ARGV[2], ARGV[3], 'COUNT', ARGV[4], 'STREAMS', KEYS[2], '>')
local time = redis.call('TIME')
return {tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000), got and got[1][2] or {}}
