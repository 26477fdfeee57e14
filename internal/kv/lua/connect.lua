-- uses: open owner loss trim history offers
-- Makes a connection the owner of a session's channel, which is opened if needed.
--
-- ARGV[1]  ID of the connection
-- ARGV[2]  ID of the connection that it resumes; empty: none
-- ARGV[3]  1: reject while another connection owns the session
-- ARGV[4]  when the connection was requested, in Unix ms of the store's clock; empty: now
-- ARGV[5]  lease of the ownership in ms
-- ARGV[6]  1: resume from the cursor in ARGV[7] and ARGV[8]
-- ARGV[7]  epoch of the cursor; *: the current one
-- ARGV[8]  ID of the cursor
-- ARGV[9]  entry that reports the connection to the runtime; if the cursor cannot be resumed, it gets recovered:false
-- ARGV[10] the session's offer to runtimes, a JSON object; empty: unknown
-- ARGV[11…] arguments for opening the channel, in the order of claim.lua
-- returns  {'attached', number of the connection, epoch, newest message ID, newest entry ID, what to offer (see takeOffer),
--          1 if text chat is on, 1 if recovered, {ID, message, ID, message …}} with the first page of the history, or {'in_use'}, {'ended'}, {'foreign'}
--
-- Atomic so that only one of two connections owns the session, and so that no message is
-- missing between the history that is read and the messages that are published later. Of
-- two connections the one that was requested later wins, even if the other arrives later.
loadChannel('state', 'epoch', 'team', 'endpoint', 'requestedAt', 'connections', 'chatOff', 'claimedBy', 'claimUntil', 'offeredAt',
  'outLast', 'cancelled', 'held', 'idleMs', 'keepMs')
if string.find(' ' .. channel.cancelled .. ' ', ' ' .. ARGV[1] .. ' ', 1, true) then return redis.error_reply('LATE the connection was cancelled') end
local rejection = connectionRejection(ARGV[1], ARGV[2], ARGV[3], ARGV[12], ARGV[13])
if rejection then return { rejection } end
if isOutdated(ARGV[4], channel.requestedAt) then return redis.error_reply('LATE a newer connection owns the session') end
local isNew = channel.state == ''
if isNew then openChannel(11) end
if channel.owner ~= '' and channel.owner ~= ARGV[1] then redis.call('PUBLISH', PREFIX .. 'down', 'R' .. ARGV[1]) end
local number = string.format('%d', toNumber(channel.connections) + 1)
local requestedAt = string.format('%d', ARGV[4] == '' and now or math.min(now, ARGV[4]))

local recovered, missed, event = 0, {}, ARGV[9]
if ARGV[6] == '1' then
  if channel.held ~= '' and parseID(ARGV[8]) and toNumber(ARGV[8]) > toNumber(channel.held) and #redis.call('XRANGE', OUT, ARGV[8], ARGV[8]) > 0 then
    setField('held', ARGV[8] == channel.outLast and '' or ARGV[8]) -- a failover has lost that it was shown
  end
  local found = readHistoryAfter(ARGV[7] == '*' and channel.epoch or ARGV[7], ARGV[8])
  if found then
    recovered, missed = 1, found
  else
    event = string.sub(event, 1, -2) .. ',"recovered":false}'
  end
elseif number == '1' and not isNew then
  trimHistory()
  missed = readHistory(1, channel.held == '' and '+' or channel.held)
end

local hasSpace = backlog() < 2 -- as in addSessionEvent
if hasSpace then addEntry(event) end
if isNew then
  -- Redis allocates 4 KB for the first entry of a stream, but no more than needed for a
  -- copy. Servers and users without COPY keep the first one.
  if redis.pcall('COPY', IN, SEEN) == 1 then redis.call('RENAME', SEEN, IN) end
  createKeys()
end
channel.owner, channel.ownerUntil = ARGV[1], string.format('%d', now + ARGV[5])
touchAt = 0 -- the lease may end earlier than the one before
keepAlive()
local offer = takeOffer()
save('owner', ARGV[1], 'ownerUntil', channel.ownerUntil, 'connections', number, 'requestedAt', requestedAt,
  'offer', ARGV[10], 'offeredAt', channel.offeredAt)
if hasSpace then notify() end
return { 'attached', number, channel.epoch, newestVisible(), lastEntryID(), offer, channel.chatOff == '' and 1 or 0,
  recovered, missed }
