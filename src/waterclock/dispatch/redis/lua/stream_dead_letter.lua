-- KEYS: fence, source, dead. ARGV: epoch, group, 1 to delete the entries, then for each message its
-- id, the number of words and the words of its dead letter. Answers how many were pending: only
-- those are written, so that one that was dead-lettered before is not dead-lettered twice.
local at, written = 4, 0
while at <= #ARGV do
  local words = tonumber(ARGV[at + 1])
  if #redis.call('XPENDING', KEYS[2], ARGV[2], ARGV[at], ARGV[at], 1) == 1 then
    -- Written first: if that is refused, the script ends here and the message is still pending.
    redis.call('XADD', KEYS[3], '*', unpack(ARGV, at + 2, at + 1 + words))
    redis.call('XACK', KEYS[2], ARGV[2], ARGV[at])
    if ARGV[3] == '1' then
      redis.call('XDEL', KEYS[2], ARGV[at])
    end
    written = written + 1
  end
  at = at + words + 2
end
return written
