-- KEYS: lock. ARGV: token. Answers 1, or 0 if the lease was not ours any more.
local held = redis.call('GET', KEYS[1])
if not held or cjson.decode(held).token ~= ARGV[1] then
  return 0
end
return redis.call('DEL', KEYS[1])
