-- Saves the rate limits and tells every instance.
--
-- KEYS[1]  the limits
-- ARGV[1]  their JSON value
-- ARGV[2]  the channel of announcements
-- ARGV[3]  the topic
-- returns  nothing of interest
--
-- Atomic so that limits are never saved without being announced.
redis.call('SET', KEYS[1], ARGV[1])
return redis.call('PUBLISH', ARGV[2], ARGV[3])
