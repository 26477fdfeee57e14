-- Releases a claim, unless another one was granted since.
--
-- ARGV[1]  token of the claim, or the ID of a connection that has ended, with which the tokens of its claims start
-- returns  {token of the released claim, the session's offer if it should be offered to runtimes}; empty where there is none
--
-- Atomic so that a claim that was resumed meanwhile is kept.
runWhenFull()
loadChannel('state', 'claimToken', 'lostToken')
local token = channel.claimToken ~= '' and channel.claimToken or channel.lostToken
if channel.state == '' or string.sub(token, 1, #ARGV[1]) ~= ARGV[1] then return { '', '' } end
redis.call('HSET', META, 'claimedBy', '', 'claimUntil', now, 'offeredAt', now)
local drained = channel.state == 'ended' and committed == entries
return { token, not drained and redis.call('HGET', META, 'offer') or '' }
