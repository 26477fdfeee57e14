-- uses: loss
-- Releases a connection's ownership of its session, or cancels its connect.lua.
--
-- ARGV[1]  ID of the connection
-- ARGV[2]  entry that reports the disconnect to the runtime
-- ARGV[3]  ID of the newest entry that frame.lua or connect.lua returned; empty: unknown
-- ARGV[4]  epoch of the connection
-- ARGV[5]  1: the outcome of connect.lua is unknown; it has no effect after this script
-- returns  'detached', or 'not_owner' if the connection does not own the session
--
-- Atomic so that a replaced connection cannot report the session as disconnected.
local CANCELLED_BYTES = 512 -- length of the list of the connections that were cancelled last
local CANCELLED_MS = 60000 -- ms for which it is kept without a channel

runWhenFull()
liveConnection = ARGV[1]
loadChannel('state', 'epoch', 'cancelled')
-- The browser may have another connection already, which does not know the entry. A loss
-- that was reported before has started a new epoch.
if channel.state == 'open' and channel.epoch == ARGV[4] and isLost(IN, ARGV[3], lastEntryID(), committed) then reportLoss() end
if channel.state ~= 'open' or channel.owner ~= ARGV[1] then
  if ARGV[5] == '1' then
    setField('cancelled', string.sub(ARGV[1] .. ' ' .. channel.cancelled, 1, CANCELLED_BYTES))
    if channel.state == '' then redis.call('PEXPIRE', META, CANCELLED_MS) end
  end
  return 'not_owner'
end
setField('owner', '')
addSessionEvent(ARGV[2])
return 'detached'
