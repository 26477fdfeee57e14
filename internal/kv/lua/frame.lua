-- Frames of the browser.

local MAX_SEEN = 4096 -- message IDs of the browser that are remembered, in fields of meta

local MAX_CHAT_ITEMS = 900 -- unsettled work items up to which chat frames register more: a browser leaves the others to the script await

-- Registers the work item of a chat frame, see the script frame, and returns its entry with the member item.
local function registerWith(entry, fields, kind, ttl, id, credential)
  local digest, trace = string.sub(credential, 1, DIGEST_LENGTH), string.sub(credential, DIGEST_LENGTH + 1)
  local deadline = string.format('%d', now + ttl)
  local item = '"workItemId":"' .. id .. '","workItemKind":"' .. kind .. '"'
  register(fields, digest, kind, id, deadline,
    '{"kind":"timeout","channelId":"' .. CHANNEL_ID .. '","at":' .. deadline .. trace .. ',' .. item .. '}')
  return '{"item":{' .. item .. ',"deadline":' .. deadline .. ',"digest":"' .. string.sub(digest, 1, 8) .. '"},' .. string.sub(entry, 2)
end

-- Adds durable frames of a browser to the runtime stream.
--
-- flags     one per frame: c for chat, e or d if it enables or disables text chat, otherwise -
-- ARGV[5…]  the message IDs of all frames, then all entries, then for each chat frame, otherwise empty, the credential of its
--           work item: digest, and the trace for the timeout entry, a JSON member after a comma, or empty
-- returns  ID of the newest entry, then for each frame: appended, repeated, chat_disabled or backpressure; or the ID and one
--          word for all of them: appended, or as ownerRejection
--
-- Atomic so that a frame that is sent again is on the stream once, and so that frames of a replaced connection are
-- rejected. It takes several frames because most of the time is spent on reading the channel. If the runtime's claim has
-- expired, the connection is notified, so that it offers the session.
--
-- If the claim has awaitChat, each chat frame registers a work item, which has the frame's message ID and is the member item
-- of its entry. Neither can be lost without the other.
function frame(connection, number, entry, flags)
  liveConnection = connection
  local count, ids = #flags, {}
  for i = 1, count do ids[i] = '<' .. ARGV[4 + i] end
  loadChannel('chatOff', 'epoch', 'claimUntil', 'offeredAt', 'seen', 'lastFrame', 'awaitChat', unpack(ids))
  local rejection = channel.owner ~= connection and ownerRejection(number)
  if not rejection and entry ~= channel.lastFrame and isEntryLost(entry) then -- lastFrame was written with that entry
    reportLoss()
    rejection = 'lost'
  end
  if rejection then return { '', rejection } end

  local before = toNumber(channel.seen)
  local seen, outcomes, fields, items = before, {}, {}, 0
  local kind, ttl
  if channel.awaitChat ~= '' and toNumber(channel.claimUntil) > now then
    kind, ttl = string.match(channel.awaitChat, '^(%a+) (%d+)$')
    local names = {} -- read only here, so that other frames cost less
    for i = 1, count do names[i] = '@' .. ARGV[4 + i] end
    readFields('queue', unpack(names))
    parseQueue()
  end
  for i = 1, count do
    local flag, id, off = string.sub(flags, i, i), ids[i], channel.chatOff
    local repeated = channel[id] ~= '' and tonumber(channel[id]) > seen - MAX_SEEN
    local hasItem = kind and flag == 'c' and channel['@' .. ARGV[4 + i]] == ''
    local isFull = backlog(0) >= 1 or hasItem and tail - head + 1 >= MAX_CHAT_ITEMS
    local refusal = flag == 'c' and off ~= '' and 'chat_disabled' or isFull and 'backpressure'
    outcomes[i] = repeated and 'repeated' or refusal or 'appended'
    if outcomes[i] == 'appended' then
      local text = ARGV[4 + count + i]
      if hasItem then
        text = registerWith(text, fields, kind, ttl, ARGV[4 + i], ARGV[4 + 2 * count + i])
        items = items + 1
      end
      addEntry(text)
      seen = seen + 1
      channel.seen = string.format('%d', seen)
      channel[id] = channel.seen
      append(fields, id, channel.seen)
      -- A browser cannot enable text chat if the runtime disabled it.
      if flag == 'd' and off == '' or flag == 'e' and off == 'browser' then
        channel.chatOff = flag == 'd' and 'browser' or ''
        append(fields, 'chatOff', channel.chatOff)
      end
    end
  end
  if seen > before then
    saveAndNotify('seen', channel.seen, 'lastFrame', channel.inLast, unpack(fields))
    forgetEvery(seen, seen - before)
    if items > 0 then forgetEvery(tail, items) end
  end
  if needsOffer() then requestRenewal() end
  if seen - before == count then outcomes = { 'appended' } end
  return { lastEntryID(), unpack(outcomes) }
end
