-- Ends a channel.
--
-- ARGV[1]  token of the claim; empty: act for the runtime that has the claim
-- ARGV[2]  reason
-- ARGV[3…] the last entries of the stream
-- returns  'done', also if the channel has ended before; 'not_found', 'lost' or 'claim_lost'
--
-- Atomic so that no entry follows the last ones. The entries of parked callbacks are
-- added before them, in order; awaited work items are dropped.
runWhenFull()
loadChannel('state', 'claimToken', 'queue')
local rejection = claimRejection(ARGV[1])
if rejection then return rejection end
if channel.state == 'ended' then return 'done' end
readQueue()
advanceQueue(true)
for i = 3, #ARGV do addEntry(ARGV[i]) end
saveAndNotify()
endChannel(ARGV[2])
return 'done'
