-- Take over what was read by anybody and not acknowledged, a page at a time.
-- KEYS: fence, source. ARGV: epoch, group, consumer, from which id, count.
-- Answers {id to go on from, entries, ids whose entries are gone}.
return redis.call('XAUTOCLAIM', KEYS[2], ARGV[2], ARGV[3], 0, ARGV[4], 'COUNT', ARGV[5])
