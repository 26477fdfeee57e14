-- Saves the rate limits and announces the change to every instance.
--
-- KEYS[1]  the limits
-- ARGV[1]  the new value, JSON
-- ARGV[2]  pub/sub channel of announcements
-- ARGV[3]  topic
-- ARGV[4]  the value to replace; empty if there is none or it is not a string
-- returns  1 if saved, 0 if the value has changed in the meantime
--
-- Atomic so that limits are never saved without an announcement, and so that concurrent
-- changes do not overwrite each other.
local kind = redis.call('TYPE', KEYS[1]).ok
local current = kind == 'string' and redis.call('GET', KEYS[1]) or ''
if current ~= ARGV[4] then
  return current == ARGV[1] and 1 or 0 -- equal if the script is retried after a lost reply
end
-- A full store accepts SET only after a command that needs no memory. Lower limits can
-- stop the client that fills it.
redis.call('PERSIST', KEYS[1])
redis.call('SET', KEYS[1], ARGV[1])
redis.call('PUBLISH', ARGV[2], ARGV[3])
return 1
