-- Grants permits of a rate-limit window.
--
-- KEYS[1]  number of permits granted in the window
-- ARGV[1]  permits requested
-- ARGV[2]  permits per window
-- ARGV[3]  length of the window in ms
-- returns  {permits granted, permits left, ms until the window ends}
--
-- Atomic so that two instances cannot exceed the limit together, and so that a count
-- always has a TTL, which ends the window.
local window = tonumber(ARGV[3])
local left = tonumber(ARGV[2]) - tonumber(redis.call('GET', KEYS[1]) or '0')
local grant = math.max(0, math.min(tonumber(ARGV[1]), left))
local ttl = redis.call('PTTL', KEYS[1])
local isNew = ttl < 0 or ttl > window -- a new window, or its length was reduced
if isNew then ttl = window end
redis.call('PEXPIRE', KEYS[1], ttl) -- before INCRBY: a full store accepts INCRBY only after a command that needs no memory
if grant > 0 then
  redis.call('INCRBY', KEYS[1], grant)
end
if isNew then redis.call('PEXPIRE', KEYS[1], ttl) end
return { grant, math.max(0, left - grant), ttl }
