-- Keeps a lease for a while longer, or gives it up.
--
-- KEYS[1]  the lease
-- ARGV[1]  the holder
-- ARGV[2]  for how many ms more; 0 gives it up
-- returns  1, or 0 where the holder is another one or nobody
--
-- Atomic so that nobody renews or ends what has passed to another.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if ARGV[2] == '0' then return redis.call('DEL', KEYS[1]) end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
