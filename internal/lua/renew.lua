-- Renews a connection's ownership of its session.
--
-- ARGV[1]  ID of the connection
-- ARGV[2]  lease in ms
-- ARGV[3]  1: the last offer may have failed, so offer the session again
-- returns  {'owned', 1 if the caller should offer the session}, {'lost'}, {'ended'} or {'not_owner'}
--
-- Atomic so that a replaced connection cannot renew its successor's lease.
load('state', 'owner', 'claimUntil', 'offeredAt')
if channel.state == '' then return { 'lost' } end
if channel.state == 'ended' then return { 'ended' } end
if channel.owner ~= ARGV[1] then return { 'not_owner' } end
if ARGV[3] == '1' then channel.offeredAt = '' end
setField('ownerUntil', now + ARGV[2])
if keepAlive() then save() end
return { 'owned', shouldOffer() }
