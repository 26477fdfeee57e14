-- Keeps a connection's ownership of its session.
--
-- ARGV[1]  the connection
-- ARGV[2]  lease in ms
-- ARGV[3]  1: whoever was told to offer it may not have come to that
-- returns  {'owned', 1 if to be offered}, {'lost'}, {'ended'} or {'not_owner'}
--
-- Atomic so that nobody renews what another connection has taken.
load('state', 'owner', 'claimUntil', 'offeredAt')
if channel.state == '' then return { 'lost' } end
if channel.state == 'ended' then return { 'ended' } end
if channel.owner ~= ARGV[1] then return { 'not_owner' } end
if ARGV[3] == '1' then channel.offeredAt = '' end
set('ownerUntil', now + ARGV[2])
if touch() then save() end
return { 'owned', offer() }
