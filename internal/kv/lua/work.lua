-- Work items and their credentials.
--
-- Work items are numbered in the order in which they are registered. They have these fields of meta:
--   <number>  of an unsettled work item: the time from which its entries can be added to the stream, a space, and the
--             entries. An awaited item has its deadline, @ and its ID, and the timeout entry. A parked one has 0 and its
--             callback's entries, a cancelled one 0 and no entries. Only the deadline of the first item needs a timer, since
--             later items wait for it. An item with parked parts starts with +, which the first item never does
--   <number>+<part>  the entry of a parked part of a streamed answer
--   <digest>  the SHA-256 of a token. Eight words: state (awaiting, streaming, routed, parked or cancelled), number of the
--             work item (0 for a channel credential), kind, deadline, work item ID, and after a callback its ID, the digest
--             of its body and the receipt, which starts with deadline, @ and ID of the item it waits for, and a space, if it
--             was parked. The digest of a streamed answer is +, the digests of its parts and, once it is settled, a dot and
--             the digest of its last line
--   @<ID>     of a work item: the digest of its credential
--   <digest> <ID or body digest>  a use of a channel credential: its number, when it is forgotten, callback ID, body digest
--             and receipt

-- The field queue, if it was read, else nil: the numbers of the first and the last work item that are not settled, and the
-- bytes of parked callbacks.
local head, tail, parked

local MAX_SETTLED    = 1024 -- work items that are remembered, to answer repeated callbacks
local MAX_WORK_ITEMS = 1000 -- of a channel: unsettled ones, and as many channel credentials; items and compact read all

local function parseQueue()
  local h, t, p = string.match(channel.queue, '^(%d+) (%d+) (-?%d+)$')
  head, tail, parked = tonumber(h or 1), tonumber(t or 0), tonumber(p or 0)
end

local function packEntries(list)
  local packed = {}
  for i, entry in ipairs(list) do packed[i] = #entry .. ':' .. entry end
  return table.concat(packed)
end

local function addPackedEntries(item, from)
  while from <= #item do
    local colon = string.find(item, ':', from, true)
    local last = colon + string.sub(item, from, colon - 1)
    addEntry(string.sub(item, colon + 1, last))
    from = last + 1
  end
end

-- Removes and returns the parked parts of a streamed answer. Needs queue.
local function takeParts(number)
  local list = {}
  while true do
    local field = string.format('%d+%d', number, #list + 1)
    local entry = redis.call('HGET', META, field)
    if not entry then return list end
    redis.call('HDEL', META, field)
    parked = parked - #entry
    list[#list + 1] = entry
  end
end

-- Adds the entries of answered and timed out work items to the stream, up to the first item that is still awaited. With
-- skipAwaited, awaited items are dropped. saveAndNotify must follow. Needs queue.
local function advanceQueue(skipAwaited) -- rare
  dueAt = NEVER
  while head <= tail do
    local item = redis.call('HGET', META, head) or '0 '
    if string.sub(item, 1, 1) == '+' then
      for _, entry in ipairs(takeParts(head)) do addEntry(entry) end
      item = string.sub(item, 2)
      redis.call('HSET', META, head, item)
    end
    local space = string.find(item, ' ', 1, true)
    local at = tonumber(string.match(item, '^%d+'))
    if at <= now then
      if at == 0 then parked = parked - (#item - space) end
      addPackedEntries(item, space + 1)
    elseif not skipAwaited then
      dueAt = at
      return
    end
    redis.call('HDEL', META, head)
    head = head + 1
  end
end

-- Returns a credential, or nil if the value is not one. expiresAt is the time from which it is invalid: a settled one
-- answers repeated callbacks for a while.
local function parseCredential(value)
  local state, number, kind, deadline, id, callbackID, bodyDigest, receipt = string.match(value, '^(%S+) (%d+) (%S+) (%d+) (%S+) (%S*) (%S*) (.*)$')
  if not state then return nil end
  local open = state == 'awaiting' or state == 'streaming'
  return { state = state, number = tonumber(number), kind = kind, deadline = tonumber(deadline), id = id,
    callbackID = callbackID, bodyDigest = bodyDigest, receipt = receipt, open = open, expiresAt = deadline + (open and 0 or RETENTION) }
end

-- Returns the credential with a digest, or nil; also if it is for another kind of callback or work item, unless these are
-- nil or empty.
local function findCredential(digest, forKind, forItem)
  local c = parseCredential(channel[digest] or redis.call('HGET', META, digest) or '')
  if c and (not forKind or c.kind == forKind and (forItem == '' or c.id == forItem)) then return c end
end

local function formatCredential(c)
  return string.format('%s %d %s %d %s %s %s %s', c.state, c.number, c.kind, c.deadline, c.id, c.callbackID, c.bodyDigest, c.receipt)
end

-- Returns why a credential cannot be used: invalid, ended, cancelled, consumed, or streaming if a streamed answer has begun;
-- nil if it can. Needs state and queue.
local function credentialRejection(c)
  local streaming = c.state == 'streaming'
  if now >= c.expiresAt then return 'invalid' end
  if channel.state == 'ended' then return 'ended' end
  if c.state == 'cancelled' then return 'cancelled' end
  if c.callbackID ~= '' and not streaming then return 'consumed' end
  if c.number > 0 and c.number < head then return 'invalid' end -- it timed out before the store's clock was set back
  if streaming then return 'streaming' end
end

-- Registers a work item, or without a timeout entry a channel credential: appends its fields to a list. Returns its number.
-- saveAndNotify must follow. Needs queue.
local function register(fields, digest, kind, id, deadline, timeoutEntry)
  local number = 0
  if timeoutEntry then
    tail = tail + 1
    number = tail
    append(fields, tostring(number), deadline .. '@' .. id .. ' ' .. packEntries({ timeoutEntry }))
    if head == tail then dueAt = tonumber(deadline) end
  end
  append(fields, '@' .. id, digest)
  append(fields, digest, 'awaiting ' .. number .. ' ' .. kind .. ' ' .. deadline .. ' ' .. id .. '   ')
  return number
end

-- Registers a work item, or a channel credential.
--
-- scope         item or channel
-- id            work item ID: 1 to 128 characters of A-Z a-z 0-9 . _ : -
-- ttl           time to wait for the result: 1 to 86400000 (24 h)
-- timeoutEntry  entry to add to the stream when the work item times out
-- returns  {'awaited', deadline in Unix ms, number of the work item or 0 for a channel credential}, also if called again
--          with the same credential and kind; {'exists'} if another work item has this ID or credential; {'too_many'} if the
--          channel has MAX_WORK_ITEMS; {'ended'}; {'unknown'} if the position needs the script commit; {'lost'}, or as claimRejection
--
-- Atomic so that work items of several processes have one order.
function await(token, digest, kind, scope, id, ttl, timeoutEntry, item, position)
  local idField, knownField = '@' .. id, string.match(item, '@.+') or '@'
  loadChannel('state', 'claimToken', 'queue', 'epoch', 'shared', digest, idField, knownField)
  local rejection = claimRejection(token)
  if rejection then return { rejection } end
  local changes = commitFirst(position)
  if not changes then return { 'unknown' } end
  if channel.state == 'open' and isItemLost(item) then
    reportLoss()
    return { 'lost' }
  end
  local c = channel[idField] == digest and findCredential(digest, kind, '')
  if c then
    if #changes > 0 then saveAndDrop(changes) end -- otherwise it works while the store is full
    return { 'awaited', tostring(c.deadline), tostring(c.number) }
  end
  if channel[idField] ~= '' or channel[digest] ~= '' then return { 'exists' } end
  if channel.state == 'ended' then return { 'ended' } end
  local isItem = scope == 'item'
  if (isItem and tail - head + 1 or toNumber(channel.shared)) >= MAX_WORK_ITEMS then return { 'too_many' } end

  if not isItem then append(changes, 'shared', string.format('%d', toNumber(channel.shared) + 1)) end
  local deadline = string.format('%d', now + ttl)
  local number = register(changes, digest, kind, id, deadline, isItem and timeoutEntry)
  saveAndDrop(changes)
  forgetEvery(number, 1)
  keepAliveIfDue()
  notify()
  return { 'awaited', deadline, tostring(number) }
end

-- Cancels an unsettled work item, or a channel credential.
--
-- id       of the work item
-- returns  'cancelled', also if it was cancelled before; 'no_item' if the work item is unknown, timed out, or its result is on
--          the stream; 'ended', or as claimRejection
--
-- Atomic so that a work item is either cancelled or answered. The callback of a parked work item is dropped. Callbacks that
-- were only waiting for this work item are routed. The parts of a streamed answer that are on the stream stay there; no more
-- follow, and the instance that receives the answer is notified.
function cancel(token, id)
  runWhenFull()
  loadChannel('state', 'claimToken', 'queue')
  local rejection = claimRejection(token)
  if rejection then return rejection end
  local digest = redis.call('HGET', META, '@' .. id)
  local c = digest and findCredential(digest)
  if not c then return 'no_item' end
  local state, number = c.state, c.number
  if state == 'cancelled' then return 'cancelled' end
  if channel.state == 'ended' then return 'ended' end
  if c.open and now >= c.deadline or number > 0 and number < head then return 'no_item' end

  c.state = 'cancelled'
  redis.call('HSET', META, digest, formatCredential(c))
  if number > 0 then
    takeParts(number)
    local stored = string.gsub(redis.call('HGET', META, number), '^%+', '')
    if state == 'parked' then parked = parked - (#stored - #'0 ') end
    redis.call('HSET', META, number, '0 ')
    advanceQueue()
  end
  saveAndNotify()
  redis.call('PUBLISH', STREAMS, CHANNEL_ID .. ' ' .. id)
  return 'cancelled'
end

-- Lists the open work items and channel credentials. It changes nothing.
--
-- returns  {ID, kind, number (0 for a channel credential), deadline in Unix ms, 1 if its result is parked, ID …}
function items()
  inspect('queue')
  local list = {}
  if channel.state ~= 'open' then return list end
  local values = redis.call('HGETALL', META)
  for i = 1, #values, 2 do
    local digest = string.sub(values[i], 1, 1) == '@' and values[i + 1]
    local c = digest and findCredential(digest)
    local settled = c and c.number > 0 and c.number < head -- its entries are on the stream
    if c and not settled and (c.open and now < c.deadline or c.state == 'parked') then
      for _, value in ipairs({ c.id, c.kind, c.number, c.deadline, c.state == 'parked' and 1 or 0 }) do list[#list + 1] = tostring(value) end
    end
  end
  return list
end
