-- Hands out permits of one window.
--
-- KEYS[1]  the window's count
-- ARGV[1]  permits wanted
-- ARGV[2]  permits per window
-- ARGV[3]  length of the window in ms
-- returns  {permits granted, permits left, ms until the window ends}
--
-- Atomic because two instances that read the count before either adds to it
-- would together hand out more than the limit; and because a count without a
-- TTL would refuse its client for ever.
local window = tonumber(ARGV[3])
local left = tonumber(ARGV[2]) - tonumber(redis.call('GET', KEYS[1]) or '0')
local grant = math.max(0, math.min(tonumber(ARGV[1]), left))
if grant > 0 then
  redis.call('INCRBY', KEYS[1], grant)
end
local ends = redis.call('PTTL', KEYS[1])
if ends < 0 or ends > window then -- a new count, or a window that was longer
  redis.call('PEXPIRE', KEYS[1], window)
  ends = window
end
return { grant, math.max(0, left - grant), ends }
