-- Publishes the fingerprint of an instance's JWT secret and lists those of all instances.
--
-- KEYS[1]  the fingerprints: a sorted set, the score is when one expires, in Unix ms
-- ARGV[1]  the fingerprint of this instance; empty to publish nothing
-- ARGV[2]  ms until it expires
-- returns  the fingerprints that have not expired
--
-- Atomic so that an expired fingerprint is never listed.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
if ARGV[1] ~= '' then
  redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
  redis.call('ZADD', KEYS[1], string.format('%.0f', now + ARGV[2]), ARGV[1])
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return redis.call('ZRANGEBYSCORE', KEYS[1], string.format('(%.0f', now), '+inf')
