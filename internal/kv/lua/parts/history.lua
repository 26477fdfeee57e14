-- Reading the history. Needs loss and trim.

-- The history is read in pages of PAGE_BYTES, so that a reader that is slow needs little
-- memory, with at most PAGE_ITEMS messages per command.
local PAGE_BYTES, PAGE_ITEMS = 131072, 8

-- Returns the history from a message number up to an ID, as {ID, message, ID, message …}: a
-- page of at most PAGE_BYTES and one message.
local function readHistory(from, last)
  local list, bytes, count = {}, 0, 1
  repeat
    local items = redis.call('XRANGE', OUT, from, last, 'COUNT', count)
    for _, item in ipairs(items) do
      if bytes >= PAGE_BYTES then return list end
      list[#list + 1] = item[1]
      list[#list + 1] = item[2][2]
      bytes = bytes + #item[2][2]
      from = toNumber(item[1]) + 1
    end
    if #items < count then return list end
    count = math.min(PAGE_ITEMS, math.ceil((PAGE_BYTES - bytes) * #list / 2 / bytes)) -- by the average length so far
  until count < 1
  return list
end

-- Returns the ID of the newest message that connections may read; empty if there is none.
-- While newer ones are held back until replicas have them, held has it, or NO_MESSAGE. Needs
-- outLast and held.
local function newestVisible()
  if channel.held == '' then return channel.outLast end
  return channel.held == NO_MESSAGE and '' or channel.held
end

-- Makes messages up to an ID visible that were held back, and publishes them. A notice has
-- one ID, whose time is that of all its messages, so there is one for each time. Needs
-- epoch, outLast and held.
local function showMessages(last)
  if channel.held == '' or toNumber(last) <= toNumber(channel.held) then return end
  local page, before, notice = readHistory(toNumber(channel.held) + 1, last), newestVisible(), {}
  for i = 1, #page, 2 do
    local id, following = page[i], page[i + 2]
    notice[#notice + 1] = page[i + 1]
    if not following or string.match(id, '%d+$') ~= string.match(following, '%d+$') then
      redis.call('PUBLISH', PREFIX .. 'down', 'M' .. channel.epoch .. ' ' .. before .. ' ' .. id .. '\n' .. table.concat(notice, '\n'))
      before, notice = id, {}
    end
  end
  if page[#page - 1] ~= last then requestRenewal() end -- the connection reads the rest
  setField('held', last == channel.outLast and '' or last)
end

-- Returns the first page of the history after a cursor, or false if the cursor is unknown
-- or messages after it were removed. Needs epoch, outLast and held.
local function readHistoryAfter(epoch, id)
  trimHistory()
  if channel.epoch == '' or epoch ~= channel.epoch then return false end
  if id ~= channel.outLast and id ~= channel.trimmed then
    if not parseID(id) or #redis.call('XRANGE', OUT, id, id) == 0 then return false end
  end
  return readHistory(toNumber(id) + 1, channel.held == '' and '+' or channel.held)
end
