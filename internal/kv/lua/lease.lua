-- Renews or releases a lease.
--
-- KEYS[1]  the lease: a string, the ID of the holder
-- ARGV[1]  ID of the holder
-- ARGV[2]  new lease time in ms; 0 releases the lease
-- returns  1, or 0 if the holder does not have the lease
--
-- Atomic so that only the holder renews or releases a lease.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if ARGV[2] == '0' then return redis.call('DEL', KEYS[1]) end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
