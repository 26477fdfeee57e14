-- Frames of the browser.

local MAX_SEEN = 4096 -- message IDs of the browser that are remembered, in fields of meta

-- Adds durable frames of a browser to the runtime stream.
--
-- flags     one per frame: c for chat, e or d if it enables or disables text chat, otherwise -
-- ARGV[5…]  the message IDs of all frames, then all entries
-- returns  ID of the newest entry, then for each frame: appended, repeated, chat_disabled or backpressure; or the ID and one
--          word for all of them: appended, or as ownerRejection
--
-- Atomic so that a frame that is sent again is on the stream once, and so that frames of a replaced connection are
-- rejected. It takes several frames because most of the time is spent on reading the channel. If the runtime's claim has
-- expired, the connection is notified, so that it offers the session.
function frame(connection, number, entry, flags)
  liveConnection = connection
  local count, ids = #flags, {}
  for i = 1, count do ids[i] = '<' .. ARGV[4 + i] end
  loadChannel('chatOff', 'epoch', 'claimUntil', 'offeredAt', 'seen', 'lastFrame', unpack(ids))
  local rejection = channel.owner ~= connection and ownerRejection(number)
  if not rejection and entry ~= channel.lastFrame and isEntryLost(entry) then -- lastFrame was written with that entry
    reportLoss()
    rejection = 'lost'
  end
  if rejection then return { '', rejection } end

  local before = toNumber(channel.seen)
  local seen, outcomes, fields = before, {}, {}
  for i = 1, count do
    local flag, id, off = string.sub(flags, i, i), ids[i], channel.chatOff
    local repeated = channel[id] ~= '' and tonumber(channel[id]) > seen - MAX_SEEN
    local refusal = flag == 'c' and off ~= '' and 'chat_disabled' or backlog(0) >= 1 and 'backpressure'
    outcomes[i] = repeated and 'repeated' or refusal or 'appended'
    if outcomes[i] == 'appended' then
      addEntry(ARGV[4 + count + i])
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
  end
  if needsOffer() then requestRenewal() end
  if seen - before == count then outcomes = { 'appended' } end
  return { lastEntryID(), unpack(outcomes) }
end
