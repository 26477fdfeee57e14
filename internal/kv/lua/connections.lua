-- Extends the lifetimes of the connections of an instance, and finds those that expired.
--
-- KEYS[1]  sorted set: connection IDs by the time at which they expire, in Unix ms
-- ARGV[1]  maximum number of expired connections to return
-- ARGV[2…] connection ID, its lifetime in ms, connection ID …
-- returns  {{connections that were not in the set}, {expired connections}}
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local missing = {}
redis.call('ZREM', KEYS[1], '') -- a full store accepts ZADD only after a command that needs no memory
for i = 2, #ARGV, 2 do
  if redis.call('ZADD', KEYS[1], string.format('%d', now + ARGV[i + 1]), ARGV[i]) == 1 then missing[#missing + 1] = ARGV[i] end
end
return { missing, redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[1]) }
