-- uses: owner loss trim history offers
-- Renews a connection's ownership of its session.
--
-- ARGV[1]  ID of the connection
-- ARGV[2]  its number, from connect.lua
-- ARGV[3]  lease in ms
-- ARGV[4]  1: the last offer may have failed, so offer the session again
-- ARGV[5]  epoch of the connection's position
-- ARGV[6]  ID of the newest message that the connection knows; empty: none
-- ARGV[7]  ID of the newest entry that frame.lua or connect.lua returned
-- returns  {'owned', what to offer (see takeOffer), ID of the newest message};
--          or {'lost'}, {'ended'}, {'expired'}, {'not_owner'}
--
-- Atomic so that a replaced connection cannot renew its successor's lease.
runWhenFull()
liveConnection = ARGV[1]
loadChannel('epoch', 'claimedBy', 'claimUntil', 'offeredAt', 'outLast', 'trimmed', 'held')
local rejection = ownerRejection(ARGV[1], ARGV[2])
if rejection then return { rejection } end
if channel.epoch ~= ARGV[5] then return { 'lost' } end
if isLost(OUT, ARGV[6], channel.outLast, toNumber(channel.trimmed)) or isLost(IN, ARGV[7], lastEntryID(), committed) then
  reportLoss()
  return { 'lost' }
end
if ARGV[4] == '1' and channel.offeredAt ~= '' then channel.offeredAt = '0' end
setField('ownerUntil', string.format('%d', now + ARGV[3]))
if keepAlive() then save() end
local offer = takeOffer()
if offer > 0 then setField('offeredAt', channel.offeredAt) end
return { 'owned', offer, newestVisible() }
