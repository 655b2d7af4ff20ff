-- KEYS: lock. ARGV: token, lease in ms. Answers 1, or 0 if the lease is not ours any more.
local held = redis.call('GET', KEYS[1])
if not held or cjson.decode(held).token ~= ARGV[1] then
  return 0
end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
