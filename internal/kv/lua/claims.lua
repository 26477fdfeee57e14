-- Records that a connection of a runtime is about to claim channels.
--
-- KEYS[1]  set: the claims that the connection may have, each the ID of a channel, a slash and a secret; and replaced
--          if the runtime has another connection instead
-- ARGV[1…] claims
-- returns  1 if the connection is replaced, otherwise 0
--
-- A script because a full store accepts SADD only after a command that needs no memory.
redis.call('SREM', KEYS[1], '')
for i = 1, #ARGV do redis.call('SADD', KEYS[1], ARGV[i]) end
return redis.call('SISMEMBER', KEYS[1], 'replaced')
