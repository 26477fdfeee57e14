-- Saves the rate limits and tells every instance.
--
-- KEYS[1]  the limits
-- ARGV[1]  their JSON value
-- ARGV[2]  the channel of announcements
-- ARGV[3]  the topic
-- ARGV[4]  the value they replace; empty: none, or one that is no text
-- returns  1 if saved, 0 if another value is there by now
--
-- Atomic so that limits are never saved without being announced, and that of two
-- administrators neither undoes what the other saved.
local kind = redis.call('TYPE', KEYS[1]).ok
local there = kind == 'string' and redis.call('GET', KEYS[1]) or ''
if there ~= ARGV[4] then
  return there == ARGV[1] and 1 or 0 -- this very script may run twice
end
redis.call('SET', KEYS[1], ARGV[1])
redis.call('PUBLISH', ARGV[2], ARGV[3])
return 1
