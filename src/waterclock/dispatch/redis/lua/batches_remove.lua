-- Forget stored batches whose messages are all acknowledged or dead-lettered.
-- KEYS: fence, batches, pending, done. ARGV: epoch, ids.
for at = 2, #ARGV, 4000 do
  local to = math.min(at + 3999, #ARGV)
  redis.call('HDEL', KEYS[2], unpack(ARGV, at, to))
  redis.call('ZREM', KEYS[3], unpack(ARGV, at, to))
  redis.call('HDEL', KEYS[4], unpack(ARGV, at, to))
end
return 'OK'
