-- KEYS: fence, done, dead. ARGV: epoch, then for each message the id of its batch, its uuid, the
-- number of words and the words of its dead letter. `done` keeps the uuids (16 bytes each) of what
-- needs no work any more though its batch is still there. Answers how many were not dead-lettered
-- before.
local at, written = 2, 0
while at <= #ARGV do
  local words = tonumber(ARGV[at + 2])
  local done, is_done = redis.call('HGET', KEYS[2], ARGV[at]) or '', false
  for i = 1, #done, 16 do
    is_done = is_done or string.sub(done, i, i + 15) == ARGV[at + 1]
  end
  if not is_done then
    redis.call('XADD', KEYS[3], '*', unpack(ARGV, at + 3, at + 2 + words))
    redis.call('HSET', KEYS[2], ARGV[at], done .. ARGV[at + 1])
    written = written + 1
  end
  at = at + words + 3
end
return written
