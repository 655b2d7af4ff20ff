-- KEYS: fence, source. ARGV: epoch, group, 1 to delete the entries, ids. Answers how many were pending.
local done = 0
for at = 4, #ARGV, 4000 do
  local to = math.min(at + 3999, #ARGV)
  done = done + redis.call('XACK', KEYS[2], ARGV[2], unpack(ARGV, at, to))
  if ARGV[3] == '1' then
    redis.call('XDEL', KEYS[2], unpack(ARGV, at, to))
  end
end
return done
