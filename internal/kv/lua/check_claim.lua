-- uses: open loss
-- Checks that the store has what it acknowledged under a claim that has ended, and reports the loss otherwise.
--
-- ARGV[1]  name of the claim if its holder still needs it; otherwise empty
-- ARGV[2]  token of the claim
-- ARGV[3]  when it was requested, in Unix ms of the store's clock, at the earliest
-- ARGV[4]  epoch of the claim
-- ARGV[5]  ID of the newest message that send.lua returned; may be empty
-- ARGV[6]  ID of the newest work item that is awaited and not expired; may be empty
-- ARGV[7]  1: replicas may not have had the claim; then its loss concerns only its holder
-- returns  'kept', also if data is lost and the claim cannot be recovered; 'lost' if the holder should recover the claim,
--          because the store has an older one again
--
-- Atomic so that a loss that concerns both sides is reported once: it starts a new epoch.
runWhenFull()
loadChannel('state', 'epoch', 'claimRequestedAt', 'outLast', 'trimmed')
if channel.state == '' then return 'kept' end
local older = ARGV[1] ~= '' and isOutdated(channel.claimRequestedAt, ARGV[3])
local isOpen = channel.state == 'open' -- an ended channel needs its entries only
if not isLaterEpoch(channel.epoch, ARGV[4]) -- otherwise the loss was reported
  and (older and ARGV[7] ~= '1' or isOpen and (isLost(OUT, ARGV[5], channel.outLast, toNumber(channel.trimmed)) or isItemLost(ARGV[6]))) then
  reportLoss()
end
if not older then return 'kept' end
redis.call('HSET', META, 'claimedBy', ARGV[1], 'claimToken', '', 'lostToken', ARGV[2])
return 'lost'
