-- Write messages of one bucket to the stream, each once.
-- KEYS: fence, stream, seen (a set of uuids). ARGV: epoch, when the bucket ends (ms), length of the
-- stream to keep about (0: all), count, then that many uuids, then for each message the number of
-- its words and the words: field, value, field, value.
-- Answers one digit a message: 1 written, 0 was there already, 2 too late to know.
local count = tonumber(ARGV[4])
local time = redis.call('TIME')
if tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000) >= tonumber(ARGV[2]) then
  -- Who wrote it, if anybody did, is forgotten: writing might write it twice.
  return string.rep('2', count)
end
local known = redis.call('SMISMEMBER', KEYS[3], unpack(ARGV, 5, 4 + count))
local keep = ARGV[3]
local fresh, is_fresh, digits = {}, {}, {}
local at = 5 + count
for i = 1, count do
  local words = tonumber(ARGV[at])
  local uuid = ARGV[4 + i]
  if known[i] == 1 or is_fresh[uuid] then
    digits[i] = '0'
  else
    if keep == '0' then
      redis.call('XADD', KEYS[2], '*', unpack(ARGV, at + 1, at + words))
    else
      redis.call('XADD', KEYS[2], 'MAXLEN', '~', keep, '*', unpack(ARGV, at + 1, at + words))
    end
    fresh[#fresh + 1] = uuid
    is_fresh[uuid] = true
    digits[i] = '1'
  end
  at = at + words + 1
end
if #fresh > 0 then
  redis.call('SADD', KEYS[3], unpack(fresh))
  -- Kept somewhat longer than it is asked: a replica that takes over may have a clock that is
  -- behind, and one that is set may jump back.
  redis.call('PEXPIREAT', KEYS[3], tonumber(ARGV[2]) + 60000)
end
return table.concat(digits)
