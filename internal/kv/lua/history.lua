-- The history: the messages that a browser gets, also after a reconnect.

local NO_MESSAGE    = '0-0'  -- before the first message
local TRIM_INTERVAL = 128    -- messages; the history is also trimmed whenever it is read
local PAGE_BYTES    = 131072 -- of a page of the history, so that a slow reader needs little memory
local PAGE_ITEMS    = 8      -- messages that are read with one command
local MAX_SENT      = 1024   -- message IDs of the runtime that are remembered, in fields of meta

-- Removes messages that exceed the history's maximum length or age. Needs outLast.
local function trimHistory() -- rare
  readFields('historyMessages', 'historyMs', 'trimmed')
  local function oldestFrom(number) return redis.call('XRANGE', OUT, number, '+', 'COUNT', 1)[1] end
  local from = math.max(1, toNumber(channel.outLast) - toNumber(channel.historyMessages) + 1)
  local oldest = oldestFrom(from)
  while oldest and now - string.match(oldest[1], '%d+$') > toNumber(channel.historyMs) do
    from = toNumber(oldest[1]) + 1
    oldest = oldestFrom(from)
  end
  local lastTrimmed = redis.call('XREVRANGE', OUT, from - 1, '-', 'COUNT', 1)[1]
  if not lastTrimmed then return end
  redis.call('XTRIM', OUT, 'MINID', from)
  setField('trimmed', lastTrimmed[1])
end

-- Returns a page of the history: {ID, message, ID, message …} from a message number up to an ID. It ends
-- with the message with which it has PAGE_BYTES, or with the history.
local function readPage(from, last)
  local page, bytes, count = {}, 0, 1
  repeat
    local items = redis.call('XRANGE', OUT, from, last, 'COUNT', count)
    for _, item in ipairs(items) do
      if bytes >= PAGE_BYTES then return page end
      local id, message = item[1], item[2][2]
      append(page, id, message)
      bytes, from = bytes + #message, toNumber(id) + 1
    end
    if #items < count then return page end
    -- As many more as fill the page if they have the average length so far.
    count = math.min(PAGE_ITEMS, math.ceil((PAGE_BYTES - bytes) / (bytes / (#page / 2))))
  until count < 1
  return page
end

-- Returns the ID of the newest message that connections may read; empty if there is none. While newer ones are held back
-- until replicas have them, it is in the field held, or NO_MESSAGE. Needs outLast and held.
local function newestVisible()
  if channel.held == '' then return channel.outLast end
  return channel.held == NO_MESSAGE and '' or channel.held
end

-- Returns the first page of what connections may read from a message number on. Needs held.
local function readVisible(from) return readPage(from, channel.held == '' and '+' or channel.held) end

-- Returns the first page of the history after a cursor, or false if the cursor is unknown or messages after it were removed.
-- Needs epoch, outLast and held.
local function readAfter(epoch, id)
  trimHistory()
  if channel.epoch == '' or epoch ~= channel.epoch then return false end
  local known = id == channel.outLast or id == channel.trimmed
  if not known and (not parseID(id) or #redis.call('XRANGE', OUT, id, id) == 0) then return false end
  return readVisible(toNumber(id) + 1)
end

-- Publishes the messages up to an ID that are held back, and makes them visible. A notice has the time of its last message
-- for all of them, so messages of two times need two notices. If there are more than a page, the connection is told to
-- read them. Needs epoch, outLast and held.
local function showMessages(last) -- rare
  if channel.held == '' or toNumber(last) <= toNumber(channel.held) then return end
  local page, before, notice = readPage(toNumber(channel.held) + 1, last), newestVisible(), {}
  local function timeOf(id) return string.match(id, '%d+$') end
  for i = 1, #page, 2 do
    local id, following = page[i], page[i + 2]
    notice[#notice + 1] = page[i + 1]
    if not following or timeOf(id) ~= timeOf(following) then
      redis.call('PUBLISH', PREFIX .. 'down', 'M' .. channel.epoch .. ' ' .. before .. ' ' .. id .. '\n' .. table.concat(notice, '\n'))
      before, notice = id, {}
    end
  end
  if before ~= last then requestRenewal() end
  setField('held', last == channel.outLast and '' or last)
end

-- Reads the first page of the history after the cursor of epoch and id.
--
-- returns  {1, {ID, message, ID, message …}}, or {0} if the history after the cursor is incomplete
function since(epoch, id)
  runWhenFull()
  loadChannel('epoch', 'outLast', 'held')
  local page = readAfter(epoch, id)
  return page and { 1, page } or { 0 }
end

-- Makes messages up to the given one visible that the script send has held back, after replicas have confirmed them.
--
-- returns  confirmed, or lost if the store has lost that message
--
-- Atomic so that a connection either reads the messages in the history or is notified.
function confirm(message, early)
  runWhenFull()
  loadChannel('state', 'epoch', 'outLast', 'trimmed', 'held')
  if channel.state == '' then return 'lost' end
  if channel.state == 'open' and isMessageLost(message) then
    if early ~= '1' then reportLoss() end
    return 'lost'
  end
  showMessages(message)
  return 'confirmed'
end

-- Sends durable messages to the browser.
--
-- flags     one per message: e or d if it enables or disables text chat, otherwise -; then h to hold the messages back until
--           the script confirm
-- ARGV[5…]  the message IDs of all messages, then all ChannelMessages, without streamId and line feeds
-- returns  {ID of the newest message, and for each message: sent, repeated or ended}; or {one word for all of them}: unknown
--          if the position needs the script commit, lost, or as claimRejection
--
-- Atomic so that a message is in the history before it is published, is published with the ID of its predecessor, and is
-- stored once even if it is sent again; and so that text chat is switched before the browser is notified. It takes several
-- messages because most of the time is spent on reading the channel.
function send(token, flags, message, position)
  local count, ids = (#ARGV - 4) / 2, {}
  for i = 1, count do ids[i] = '>' .. ARGV[4 + i] end
  loadChannel('state', 'claimToken', 'outLast', 'epoch', 'trimmed', 'held', unpack(ids))
  local rejection = claimRejection(token)
  if rejection then return { rejection } end
  local changes = commitFirst(position)
  if not changes then return { 'unknown' } end
  local flowChanged = #changes > 0
  local isOpen = channel.state == 'open'
  if isOpen and isMessageLost(message) then
    reportLoss()
    return { 'lost' }
  end
  local before, first = channel.outLast, toNumber(channel.outLast)
  local number, outcomes, notice = first, {}, { '' }
  for i = 1, count do
    local id, flag = ids[i], string.sub(flags, i, i)
    if channel[id] ~= '' and tonumber(channel[id]) > number - MAX_SENT then
      outcomes[1 + i] = 'repeated'
    elseif not isOpen then
      outcomes[1 + i] = 'ended'
    else
      outcomes[1 + i] = 'sent'
      number = number + 1
      channel.outLast, channel[id] = string.format(ID_FORMAT, number, now), string.format('%d', number)
      redis.call('XADD', OUT, channel.outLast, 'message', ARGV[4 + count + i])
      append(notice, ARGV[4 + count + i])
      append(changes, id, channel[id])
      if flag == 'd' or flag == 'e' then append(changes, 'chatOff', flag == 'd' and 'runtime' or '') end
    end
  end
  outcomes[1] = channel.outLast
  if number > first then
    append(changes, 'outLast', channel.outLast)
    if number % TRIM_INTERVAL < number - first then trimHistory() end -- a multiple is among the new numbers
    if string.sub(flags, count + 1) == 'h' then
      append(changes, 'held', channel.held ~= '' and channel.held or before ~= '' and before or NO_MESSAGE)
    else
      if channel.held ~= '' then append(changes, 'held', '') end -- connections miss the notice's predecessor and read the history
      notice[1] = 'M' .. channel.epoch .. ' ' .. before .. ' ' .. channel.outLast
      redis.call('PUBLISH', PREFIX .. 'down', table.concat(notice, '\n'))
    end
    if now >= touchAt then
      keepAlive()
      flowChanged = true
    end
  end
  if flowChanged then
    saveAndDrop(changes)
  elseif #changes > 0 then
    redis.call('HSET', META, unpack(changes))
  end
  if number > first then forgetEvery(number, number - first) end
  return outcomes
end
