-- Frames of the browser.

-- Recent message IDs of the browser are kept in two sets. When seen has MAX_SEEN IDs,
-- it replaces seenBefore.
local MAX_SEEN = 4096

-- Returns which of the IDs are in either set, as a table from ID to true or false.
local function findIDs(set, older, ids) -- rare
  if #ids == 0 then return {} end
  local inNewer, inOlder, found = redis.call('SMISMEMBER', set, unpack(ids)), redis.call('SMISMEMBER', older, unpack(ids)), {}
  for i, id in ipairs(ids) do found[id] = inNewer[i] == 1 or inOlder[i] == 1 end
  return found
end

-- Adds IDs to a set. A full set first replaces the older one, whose IDs are dropped.
-- keepAlive must follow: it sets the TTL of the new set.
local function rememberIDs(set, older, max, ids) -- rare
  if #ids == 0 then return end
  if redis.call('SCARD', set) >= max then
    redis.call('UNLINK', older)
    redis.call('RENAME', set, older)
    touchAt = 0
  end
  redis.call('SADD', set, unpack(ids))
end

-- Adds durable frames of a browser to the runtime stream.
--
-- connection  ID of the connection that received them
-- number      its number, from the script connect
-- newest      ID of the newest entry that this script or connect returned to the connection; empty: unknown
-- flags       one per frame: c for chat, e or d if it enables or disables text chat, otherwise -
-- ARGV[5…]    the message IDs of all frames, then all entries
-- returns  ID of the newest entry, then for each frame: appended, repeated, chat_disabled or backpressure;
--          or the ID and one word for all of them: appended, lost, ended, expired, not_owner
--
-- Atomic so that a frame that is sent again is on the stream once, and so that frames of
-- a replaced connection are rejected. It takes several frames because most of the time is
-- spent on reading the channel. If the runtime's claim has expired, the connection is
-- notified, so that it offers the session.
function frame(connection, number, newest, flags)
  liveConnection = connection
  loadChannel('chatOff', 'epoch', 'claimUntil', 'offeredAt')
  local rejection = (channel.owner ~= connection or connection == '') and ownerRejection(number)
  if not rejection and isEntryLost(newest) then
    reportLoss()
    rejection = 'lost'
  end
  if rejection then return { '', rejection } end

  -- Until there are enough entries to fill the newer set, the older one is empty, and the reply
  -- of SADD tells whether an ID is known.
  local count, outcomes, newIDs, known = #flags, {}, {}, nil
  if entries + count >= MAX_SEEN - 1 then known = findIDs(SEEN, SEEN_BEFORE, { unpack(ARGV, 5, 4 + count) }) end
  for i = 1, count do
    local flag, id, off = string.sub(flags, i, i), ARGV[4 + i], channel.chatOff
    local refusal = flag == 'c' and off ~= '' and 'chat_disabled' or backlog(0) >= 1 and 'backpressure'
    local repeated
    if known then
      repeated = known[id]
    elseif refusal then
      repeated = redis.call('SISMEMBER', SEEN, id) == 1
    else
      repeated = redis.call('SADD', SEEN, id) == 0
    end
    outcomes[i] = repeated and 'repeated' or refusal or 'appended'
    if outcomes[i] == 'appended' then
      addEntry(ARGV[4 + count + i])
      newIDs[#newIDs + 1] = id
      if known then known[id] = true end
      -- A browser cannot enable text chat if the runtime disabled it.
      if flag == 'd' and off == '' or flag == 'e' and off == 'browser' then
        channel.chatOff = flag == 'd' and 'browser' or ''
        redis.call('HSET', META, 'chatOff', channel.chatOff)
      end
    end
  end
  if #newIDs > 0 then
    if known then rememberIDs(SEEN, SEEN_BEFORE, MAX_SEEN, newIDs) end
    if now >= touchAt then keepAlive() end
    save()
    notify()
  end
  if needsOffer() then requestRenewal() end
  if #newIDs == count then outcomes = { 'appended' } end
  return { lastEntryID(), unpack(outcomes) }
end
