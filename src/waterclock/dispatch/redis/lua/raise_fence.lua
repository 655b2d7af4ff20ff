-- KEYS: fence. ARGV: epoch. The fence stands at the epoch now; lower ones are refused from here on.
return 'OK'
