-- Opening channels, and the browser's connection: the owner of a session.

local CLOCK_ERROR     = 100   -- ms by which two callers' estimates of the store's clock may differ
local CANCELLED_BYTES = 512   -- length of the list of the connections that were cancelled last
local CANCELLED_MS    = 60000 -- ms for which it is kept without a channel

-- Creates the streams of a channel that do not exist. A stream keeps existing when it becomes empty.
local function createStreams()
  for _, stream in ipairs({ IN, OUT }) do
    if redis.call('EXISTS', stream) == 0 then
      redis.call('XADD', stream, '0-1', '', '')
      redis.call('XDEL', stream, '0-1')
    end
  end
end

-- Starts a new epoch of the channel with the 13 arguments that start at ARGV[first], in the order of the script claim.
-- createStreams, keepAlive and save must follow.
local function openChannel(first)
  local names = { 'epoch', 'team', 'endpoint', 'mode', 'callId', 'transactionId', 'profile', 'historyMessages', 'historyMs', 'idleMs', 'keepMs' }
  local fields = { 'openedAt', string.format('%d', now), 'state', 'open' }
  for i, name in ipairs(names) do
    channel[name] = ARGV[first + i - 1]
    if channel[name] ~= '' then append(fields, name, channel[name]) end
  end
  redis.call('HSET', META, unpack(fields))
  channel.state, channel.owner, channel.inLast = 'open', '', '0-0'
  entries, bytes, committed, committedBytes = 0, 0, 0, 0
  maxEntries, maxBytes, dueAt, touchAt = tonumber(ARGV[first + 11]), tonumber(ARGV[first + 12]), NEVER, 0
end

-- Returns whether a request for the ownership or a claim is older than the one that was granted last. grantedAt is when
-- that one was requested. It is ignored if the store's clock was set back since.
local function isOutdated(requestedAt, grantedAt)
  return requestedAt ~= '' and toNumber(grantedAt) <= now and toNumber(requestedAt) + CLOCK_ERROR < toNumber(grantedAt)
end

-- Returns why a connection does not own its session: ended, expired if there is no new owner, not_owner, or lost if the
-- store has lost the channel or this connection: it has counted fewer than this one's number.
local function ownerRejection(number) -- rare
  readFields('state', 'connections')
  if channel.state == '' then return 'lost' end
  if channel.state == 'ended' then return 'ended' end
  if toNumber(channel.connections) < toNumber(number) then return 'lost' end
  return channel.owner == '' and 'expired' or 'not_owner'
end

-- Returns why a connection cannot become the owner of a session, or nil if it can: ended, foreign if the session belongs to
-- another team or endpoint, or in_use. The arguments are those of the script connect. Needs state, team and endpoint.
local function connectRejection(connection, predecessor, rejectDuplicate, team, endpoint)
  local owner = channel.owner
  if channel.state == '' then return nil end
  if channel.state == 'ended' then return 'ended' end
  if channel.team ~= team or channel.endpoint ~= endpoint then return 'foreign' end
  if rejectDuplicate ~= '1' or owner == '' or owner == connection or owner == predecessor then return nil end
  if toNumber(channel.ownerUntil) > now then return 'in_use' end
end

-- Returns as connectRejection for a new connection, or 'admitted'. It changes nothing.
function check_connect(predecessor, rejectDuplicate, team, endpoint)
  inspect('team', 'endpoint')
  return connectRejection('', predecessor, rejectDuplicate, team, endpoint) or 'admitted'
end

-- Makes a connection the owner of a session's channel, which is opened if needed.
--
-- predecessor      ID of the connection that it resumes; empty: none
-- rejectDuplicate  reject while another connection than the predecessor owns the session
-- resume           resume from the cursor, of which cursor is the ID; cursorEpoch *: of the current epoch
-- event            entry that reports the connection to the runtime; if the cursor cannot be resumed, it gets recovered:false
-- sessionOffer     the session's offer to runtimes, a JSON object; empty: unknown
-- ARGV[11…]        arguments for opening the channel, in the order of the script claim
-- returns  {'attached', number of the connection, epoch, newest message ID, newest entry ID, takeOffer, 1 if text chat is on,
--          1 if recovered, {ID, message, ID, message …}} with the first page of the history, or as connectRejection
--
-- Atomic so that only one of two connections owns the session, and so that no message is missing between the history that
-- is read and the messages that are published later. Of two connections the one that was requested later wins, even if
-- the other arrives later.
function connect(connection, predecessor, rejectDuplicate, requestedAt, lease, resume, cursorEpoch, cursor, event, sessionOffer)
  local team, endpoint = ARGV[12], ARGV[13]
  loadChannel('state', 'epoch', 'team', 'endpoint', 'requestedAt', 'connections', 'chatOff', 'claimedBy', 'claimUntil', 'offeredAt',
    'outLast', 'cancelled', 'held', 'idleMs', 'keepMs')
  if string.find(' ' .. channel.cancelled .. ' ', ' ' .. connection .. ' ', 1, true) then
    return redis.error_reply('LATE the connection was cancelled')
  end
  local rejection = connectRejection(connection, predecessor, rejectDuplicate, team, endpoint)
  if rejection then return { rejection } end
  if isOutdated(requestedAt, channel.requestedAt) then return redis.error_reply('LATE a newer connection owns the session') end
  local isNew = channel.state == ''
  if isNew then openChannel(11) end
  if channel.owner ~= '' and channel.owner ~= connection then redis.call('PUBLISH', PREFIX .. 'down', 'R' .. connection) end
  local number = string.format('%d', toNumber(channel.connections) + 1)

  local recovered, missed = 0, {}
  if resume == '1' then
    if channel.held ~= '' and parseID(cursor) and toNumber(cursor) > toNumber(channel.held) and #redis.call('XRANGE', OUT, cursor, cursor) > 0 then
      setField('held', cursor == channel.outLast and '' or cursor) -- it was shown before a failover lost that
    end
    local page = readAfter(cursorEpoch == '*' and channel.epoch or cursorEpoch, cursor)
    if page then
      recovered, missed = 1, page
    else
      event = string.sub(event, 1, -2) .. ',"recovered":false}'
    end
  elseif number == '1' and not isNew then
    trimHistory()
    missed = readVisible(1)
  end

  if backlog(0) < 2 then addEntry(event) end -- as in addSessionEvent
  if isNew then
    -- Redis allocates 4 KB for the first entry of a stream, but no more than needed for a copy. Servers and users without
    -- COPY keep the first one.
    if redis.pcall('COPY', IN, OUT) == 1 then redis.call('RENAME', OUT, IN) end
    createStreams()
  end
  channel.owner, channel.ownerUntil = connection, string.format('%d', now + lease)
  keepAlive() -- the lease may end earlier than the one before
  local offer = takeOffer()
  save('owner', connection, 'ownerUntil', channel.ownerUntil, 'connections', number, 'offer', sessionOffer, 'offeredAt', channel.offeredAt,
    'requestedAt', string.format('%d', requestedAt == '' and now or math.min(now, requestedAt)))
  notify()
  return { 'attached', number, channel.epoch, newestVisible(), lastEntryID(), offer, channel.chatOff == '' and 1 or 0,
    recovered, missed }
end

-- Renews a connection's ownership of its session.
--
-- reoffer  the last offer may have failed, so offer the session again
-- returns  {'owned', takeOffer, ID of the newest message}, or as ownerRejection
--
-- Atomic so that a replaced connection cannot renew its successor's lease.
function renew(connection, number, lease, reoffer, epoch, message, entry)
  runWhenFull()
  liveConnection = connection
  loadChannel('epoch', 'claimedBy', 'claimUntil', 'offeredAt', 'outLast', 'trimmed', 'held')
  if channel.owner ~= connection then return { ownerRejection(number) } end
  if channel.epoch ~= epoch then return { 'lost' } end
  if isMessageLost(message) or isEntryLost(entry) then
    reportLoss()
    return { 'lost' }
  end
  if reoffer == '1' and channel.offeredAt ~= '' then channel.offeredAt = '0' end
  setField('ownerUntil', string.format('%d', now + lease))
  keepAliveIfDue()
  local offer = takeOffer()
  if offer > 0 then setField('offeredAt', channel.offeredAt) end
  return { 'owned', offer, newestVisible() }
end

-- Releases a connection's ownership of its session, or cancels its connect.
--
-- event          entry that reports the disconnect to the runtime
-- cancelConnect  the outcome of connect is unknown; it has no effect after this script
-- returns  'detached', or 'not_owner' if the connection does not own the session
--
-- Atomic so that a replaced connection cannot report the session as disconnected.
function detach(connection, event, entry, epoch, cancelConnect)
  runWhenFull()
  liveConnection = connection
  loadChannel('state', 'epoch', 'cancelled')
  -- The browser may have another connection already, which does not know the entry. A loss that was reported before has
  -- started a new epoch.
  if channel.state == 'open' and channel.epoch == epoch and isEntryLost(entry) then reportLoss() end
  if channel.owner ~= connection then -- an ended channel has no owner
    if cancelConnect == '1' then
      setField('cancelled', string.sub(connection .. ' ' .. channel.cancelled, 1, CANCELLED_BYTES))
      if channel.state == '' then redis.call('PEXPIRE', META, CANCELLED_MS) end
    end
    return 'not_owner'
  end
  setField('owner', '')
  addSessionEvent(event)
  return 'detached'
end
