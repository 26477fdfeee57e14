-- Claims a channel for a runtime, opening it where asked to, or keeps a claim.
--
-- ARGV[1]  the runtime's name
-- ARGV[2]  a token of this claim, by which it is told from an earlier one
-- ARGV[3]  the lease in ms; 0 gives the claim up
-- ARGV[4]  open, attach, accept or renew
-- ARGV[5…] for open: epoch, team, endpoint, mode, call id, transaction id, profile, and
--          the limits: history messages, history ms, backlog entries, backlog bytes, idle ms, keep ms
-- returns  {'claimed', epoch, team, endpoint, mode, call id, transaction id, profile, committed position},
--          or one of: {'lost'} no such channel; {'ended'} open of one that has ended; {'foreign'} it is another
--          team's or endpoint's; {'taken'} another runtime has it; {'claim_lost'} the claim to renew is gone
--
-- Atomic so that of two runtimes one has the channel. With open and attach a
-- runtime of the same name takes over from itself: it was started again. Not
-- with accept, since the same session may be offered twice. An ended channel can
-- be claimed, so that what was acknowledged before its end is still read.
load('state', 'team', 'endpoint', 'claimedBy', 'claimToken', 'claimUntil')
local how = ARGV[4]
if channel.state == '' and how == 'open' then
  open(5)
elseif channel.state == '' then
  return { 'lost' }
elseif how == 'open' and channel.state == 'ended' then
  return { 'ended' }
elseif how == 'open' and (channel.team ~= ARGV[6] or channel.endpoint ~= ARGV[7]) then
  return { 'foreign' }
end
if how == 'renew' then
  if channel.claimToken ~= ARGV[2] then return { 'claim_lost' } end
elseif num(channel.claimUntil) > now and channel.claimToken ~= ARGV[2]
  and (how == 'accept' or channel.claimedBy ~= ARGV[1]) then
  return { 'taken' }
end
redis.call('HSET', META, 'claimedBy', ARGV[1], 'claimToken', ARGV[2], 'claimUntil', now + ARGV[3], 'offeredAt', '')
if touch() then save() end
local reply = redis.call('HMGET', META, 'epoch', 'team', 'endpoint', 'mode', 'callId', 'transactionId', 'profile', 'committed')
for i = 1, 8 do reply[i] = reply[i] or '' end
return { 'claimed', unpack(reply) }
