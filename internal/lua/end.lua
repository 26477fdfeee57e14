-- Ends a channel.
--
-- ARGV[1]  the claim's token; empty: on behalf of whoever has the claim
-- ARGV[2]  the reason
-- ARGV[3…] the entries that tell the runtime
-- returns  'done', also of one that has ended before; 'lost' or 'claim_lost'
--
-- Atomic so that nothing follows the last entry. What was answered and waits for
-- its turn comes before it, in order.
load('state', 'claimToken', 'queue')
if channel.state == '' then return 'lost' end
if ARGV[1] ~= '' and channel.claimToken ~= ARGV[1] then return 'claim_lost' end
if channel.state == 'ended' then return 'done' end
queue()
advance(true)
for i = 3, #ARGV do add(ARGV[i]) end
announce()
finish(ARGV[2])
return 'done'
