-- Store batches and how far the channel has been read, in one step.
-- KEYS: fence, batches, pending, position. ARGV: epoch, position, then id, deadline (ms) and bytes
-- of each batch.
for at = 3, #ARGV, 3 do
  redis.call('HSET', KEYS[2], ARGV[at], ARGV[at + 2])
  redis.call('ZADD', KEYS[3], ARGV[at + 1], ARGV[at])
end
redis.call('SET', KEYS[4], ARGV[2])
return 'OK'
