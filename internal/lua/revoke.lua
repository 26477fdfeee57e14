-- Releases the claim of a connection that has ended, unless another one has the channel.
--
-- ARGV[1]  ID of the connection, with which the tokens of its claims start
-- returns  the session's offer if it should be offered to runtimes; otherwise empty
--
-- Atomic so that a claim that was resumed meanwhile is kept.
runWhenFull()
loadChannel('state', 'claimToken', 'claimUntil')
if channel.state == '' or string.sub(channel.claimToken, 1, #ARGV[1]) ~= ARGV[1] then return '' end
redis.call('HSET', META, 'claimedBy', '', 'claimUntil', now, 'offeredAt', now)
if channel.state == 'ended' and committed == entries then return '' end
return redis.call('HGET', META, 'offer') or ''
