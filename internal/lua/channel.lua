-- Every channel script starts with this file: channel.lua followed by X.lua is the
-- complete script. If there is an X_fast.lua, insert it before the marker below. It
-- handles the common case of X.lua in about half the time, because it runs before the
-- functions after the marker are created and makes fewer calls.
--
-- KEYS[1]  meta: hash, the channel's fields
-- KEYS[2]  in: the runtime stream (field entry; every TOTAL_INTERVAL-th entry also has the field total)
-- KEYS[3]  out: the history, a stream (field message)
-- KEYS[4]  seen: set, recent message IDs of the browser
-- KEYS[5]  sent: set, recent message IDs of the runtime
-- KEYS[6]  work: hash, work items and their credentials
-- KEYS[7]  forget: sorted set, fields of work by the time at which they are deleted
-- KEYS[8]  seenBefore: set, message IDs of the browser that are older than those in seen
-- KEYS[9]  sentBefore: set, message IDs of the runtime that are older than those in sent
--
-- createKeys creates all of them, so that a cluster can move a slot while its channels
-- are in use: a script fails with TRYAGAIN if a key is missing on the node that it is
-- moved from.
--
-- The last argument of every script is its deadline: the time in Unix ms of the store's
-- clock after which it must not run any more, or empty. A caller that has reported a
-- failure can rely on it: the script has no effect later. It replies with the error LATE.
-- Only the service runs the scripts, so they do not check their other arguments.
local META, IN, OUT, SEEN, SENT, WORK, FORGET, SEEN_BEFORE, SENT_BEFORE = unpack(KEYS)
local deadline = table.remove(ARGV)
local PREFIX = string.sub(META, 1, -5) -- of the channel's keys and pub/sub channels

-- A time in the far future. It has 14 digits because Lua prints larger numbers in
-- scientific notation.
local NEVER = 99999999999999

-- Every 16th entry has the total size of all entries up to it, so that commit.lua
-- counts committed bytes exactly and reads at most 16 entries.
local TOTAL_INTERVAL = 16

-- Recent message IDs of the browser are kept in two sets. When seen has MAX_SEEN IDs,
-- it replaces seenBefore. frame.lua checks this once per SEEN_CHECK_INTERVAL entries;
-- frame_fast.lua does not handle the frames for which the check is due.
local MAX_SEEN = 4096
local SEEN_CHECK_INTERVAL = 256

-- The history is read in pages of PAGE_BYTES, so that a reader that is slow needs little
-- memory, with at most PAGE_ITEMS messages per command.
local PAGE_BYTES, PAGE_ITEMS = 131072, 8

-- The history is trimmed once per TRIM_INTERVAL messages, and whenever it is read.
local TRIM_INTERVAL = 128

local OFFER_INTERVAL = 60000 -- ms between two offers of an unclaimed session

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000) -- Unix ms

if deadline ~= '' and now > tonumber(deadline) then return redis.error_reply('LATE the call arrived after its deadline') end

-- These are formats and patterns, not functions, so that fast versions can use them.

-- Format of stream IDs: number and time in ms. Numbers start at 1 and have no gaps. IDs
-- are unique even after a failover that lost the newest items: a reused number has
-- another time.
local ID_FORMAT = '%d-%d'

-- Pattern and format of the field flow of meta. It is one field because most scripts
-- need all of it:
--   touchAt         time from which activity extends the channel's idle time again, at most the end of the owner's lease
--   dueAt           deadline of the first awaited work item, or NEVER
--   idleAt          time at which the channel ends if it stays idle
--   entries, bytes  number and size of all entries of the runtime stream so far
--   committed, committedBytes  number and size of the committed entries
--   maxEntries, maxBytes       limits of the uncommitted entries
-- The pattern also captures the last four together, because fast versions copy them.
-- Texts are formatted with %s and numbers with %d: %s is slow for numbers, %d for texts.
local FLOW_PATTERN = '^(%d+) (%d+) (%d+) (%d+) (%d+) ((%d+) (%d+) (%d+) (%d+))$'
local FLOW_FORMAT = '%s %d %s %d %d %s'
local FLOW_TIMES = '^(%d+) (%d+) ' -- touchAt and dueAt alone

-- Pattern and format of the field queue of meta: the numbers of the first and the last
-- work item that are not settled, and the bytes of parked callbacks.
local QUEUE_PATTERN = '^(%d+) (%d+) (-?%d+)$'
local QUEUE_FORMAT = '%s %s %s'

-- MARKER: the fast version, X_fast.lua, goes before this line.

local TOUCH_INTERVAL = 60000    -- ms between two extensions of the TTLs of all nine keys, which is expensive
local DIGEST_LENGTH  = 64       -- of a credential, in hex
local RETENTION      = 3600000  -- ms after its deadline for which a credential is kept, to answer repeated callbacks
local FORGET_BATCH   = 8        -- fields of work deleted per call; more than a call adds, so that work does not grow
local MAX_DIGITS     = 18       -- of either half of a stream ID; Redis rejects numbers above 64 bits
local CLOCK_ERROR    = 100      -- ms by which two callers' estimates of the store's clock may differ
local CANCELLED_BYTES = 512     -- length of the list of the connections that were cancelled last
local CANCELLED_MS   = 60000    -- ms for which it is kept without a channel
local NO_MESSAGE     = '0-0'    -- before the first message
local NO_UUID        = '-9223372036854775808' -- the member of an empty set of UUIDs

local channel = {} -- fields of meta that were read, '' where not set

local touchAt, dueAt, idleAt, entries, bytes, committed, committedBytes, maxEntries, maxBytes -- the field flow
local head, tail, parked  -- the field queue, if it was read
local newestEntry         -- ID of the last entry that this script added
local liveConnection = '' -- ID of the connection that runs this script; its lease does not expire meanwhile

-- Makes a full store run the rest of the script. A store without memory refuses a command that
-- adds data, but only if the script has changed nothing before: here the script deletes a
-- field that does not exist. Scripts call it first that remove data, or that must work so
-- that data can be removed.
local function runWhenFull() redis.call('HDEL', META, '') end

local function readFields(...)
  local names, values = { ... }, redis.call('HMGET', META, ...)
  for i = 1, #names do channel[names[i]] = values[i] or '' end
end

local function setField(name, value)
  channel[name] = value
  redis.call('HSET', META, name, value)
end

-- Returns the number in a field or at the start of a stream ID; 0 if there is none.
local function toNumber(value) return tonumber(value) or tonumber(string.match(value, '^%d+') or '0') end

-- Returns the ID of an item that is added now to either stream.
local function newID(number) return string.format(ID_FORMAT, number, now) end

-- Returns the ID of the newest entry of the runtime stream; empty if there was none.
local function lastEntryID() return entries == 0 and '' or channel.inLast end

local function parseFlow()
  local t, d, i, e, b, _, c, cb, me, mb = string.match(channel.flow, FLOW_PATTERN)
  touchAt, dueAt, idleAt, entries, bytes = tonumber(t), tonumber(d), tonumber(i), tonumber(e), tonumber(b)
  committed, committedBytes, maxEntries, maxBytes = tonumber(c), tonumber(cb), tonumber(me), tonumber(mb)
end

local function readQueue()
  if head then return end
  if not channel.queue then readFields('queue') end
  local h, t, p = string.match(channel.queue, QUEUE_PATTERN)
  head, tail, parked = tonumber(h or 1), tonumber(t or 0), tonumber(p or 0)
end

-- Writes flow and inLast, queue if it was read, and the fields in the arguments: name,
-- value, name, value …
local function save(...)
  local flow = string.format('%d %d %d %d %d %d %d %d %d', touchAt, dueAt, idleAt, entries, bytes, committed, committedBytes, maxEntries, maxBytes)
  if head then
    redis.call('HSET', META, 'flow', flow, 'inLast', channel.inLast, 'queue', string.format(QUEUE_FORMAT, head, tail, parked), ...)
  else
    redis.call('HSET', META, 'flow', flow, 'inLast', channel.inLast, ...)
  end
end

-- Adds an entry to the runtime stream. save and notify must follow.
local function addEntry(entry)
  entries, bytes = entries + 1, bytes + #entry
  newestEntry = newID(entries)
  channel.inLast = newestEntry
  if entries % TOTAL_INTERVAL > 0 then
    redis.call('XADD', IN, newestEntry, 'entry', entry)
  else
    redis.call('XADD', IN, newestEntry, 'entry', entry, 'total', string.format('%d', bytes))
  end
end

local function expireIn(milliseconds)
  local ttl = string.format('%d', milliseconds) -- once: Redis is slow to format a number
  for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, ttl) end
end

-- Extends the channel's idle time and its keys' TTLs, if touchAt is reached. Returns
-- true if save must follow. Needs owner and ownerUntil.
local function keepAlive()
  if now < touchAt then return false end
  if not channel.idleMs then readFields('idleMs', 'keepMs') end
  local idle = toNumber(channel.idleMs)
  touchAt, idleAt = now + math.min(TOUCH_INTERVAL, math.floor(idle / 10)), now + idle
  if channel.owner ~= '' then touchAt = math.min(touchAt, toNumber(channel.ownerUntil)) end
  expireIn(idle + toNumber(channel.keepMs))
  return true
end

-- Notifies the runtime of the newest entry, if there is one, and of the time until the
-- next work item times out.
local function notify()
  local wait = dueAt < NEVER and string.format('%d', dueAt - now) or ''
  redis.call('PUBLISH', PREFIX .. 'up', newestEntry and 'E' .. newestEntry .. ' ' .. wait or 'D' .. wait)
end

-- Saves flow and queue after a change of the stream or of work items.
local function saveAndNotify()
  keepAlive()
  save()
  notify()
end

local function endChannel(reason)
  touchAt, idleAt = NEVER, NEVER
  save('state', 'ended', 'endReason', reason, 'owner', '')
  channel.state, channel.owner = 'ended', ''
  redis.call('PUBLISH', PREFIX .. 'down', 'X' .. reason)
  expireIn(redis.call('HGET', META, 'keepMs'))
end

-- Returns which of the IDs are in either set, as a table from ID to true or false.
local function findIDs(set, older, ids)
  if #ids == 0 then return {} end
  local inNewer, inOlder, found = redis.call('SMISMEMBER', set, unpack(ids)), redis.call('SMISMEMBER', older, unpack(ids)), {}
  for i, id in ipairs(ids) do found[id] = inNewer[i] == 1 or inOlder[i] == 1 end
  return found
end

-- Adds IDs to a set. A full set first replaces the older one, whose IDs are dropped.
-- keepAlive must follow: it sets the TTL of the new set.
local function rememberIDs(set, older, max, ids)
  if #ids == 0 then return end
  if redis.call('SCARD', set) >= max then
    redis.call('UNLINK', older)
    redis.call('RENAME', set, older)
    touchAt = 0
  end
  redis.call('SADD', set, unpack(ids))
end

-- Work items are numbered in the order in which they are registered. The hash work
-- has three kinds of fields:
--   <number>  of an unsettled work item: the time from which its entries can be
--             added to the stream, a space, and the entries. An awaited item has its
--             deadline, @ and its ID, and the timeout entry. A parked one has 0 and its
--             callback's entries, a cancelled one 0 and no entries. Only the deadline of
--             the first item needs a timer, since later items wait for it.
--   <digest>  of a credential: state (awaiting, routed, parked or cancelled), number of
--             the work item (0 for a channel credential), kind, deadline, work item ID,
--             and after a callback its ID, the digest of its body and the receipt, which
--             starts with deadline, @ and ID of the item it waits for, and a space, if it was parked
--   @<ID>     of a work item: the digest of its credential
--   <digest> <ID or body digest>  a use of a channel credential: callback ID, body digest and receipt
--   #<number> the field of a use; uses are numbered, so that the oldest can be dropped

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

-- Adds the entries of answered and timed out work items to the stream, up to the first
-- item that is still awaited. With skipAwaited, awaited items are dropped. Needs
-- readQueue; saveAndNotify must follow.
local function advanceQueue(skipAwaited)
  dueAt = NEVER
  while head <= tail do
    local item = redis.call('HGET', WORK, head) or '0 '
    local space = string.find(item, ' ', 1, true)
    local at = tonumber(string.match(item, '^%d+'))
    if at <= now then
      if at == 0 then parked = parked - (#item - space) end
      addPackedEntries(item, space + 1)
    elseif not skipAwaited then
      dueAt = at
      return
    end
    redis.call('HDEL', WORK, head)
    head = head + 1
  end
end

-- Returns the credential with a digest, or nil.
local function findCredential(digest)
  local state, number, kind, deadline, id, callbackID, bodyDigest, receipt =
    string.match(redis.call('HGET', WORK, digest) or '', '^(%S+) (%d+) (%S+) (%d+) (%S+) (%S*) (%S*) (.*)$')
  if not state then return nil end
  return { state = state, number = tonumber(number), kind = kind, deadline = tonumber(deadline), id = id,
    callbackID = callbackID, bodyDigest = bodyDigest, receipt = receipt }
end

local function formatCredential(c)
  return table.concat({ c.state, c.number, c.kind, c.deadline, c.id, c.callbackID, c.bodyDigest, c.receipt }, ' ')
end

-- Returns the credential with a digest if it is for this kind of callback and, unless
-- empty, this work item; otherwise nil.
local function credentialFor(digest, kind, workItemID)
  local c = channel.state ~= '' and findCredential(digest)
  if c and c.kind == kind and (workItemID == '' or workItemID == c.id) then return c end
end

-- Returns why a credential cannot be used: invalid, ended, cancelled or consumed. It
-- returns nil if it can. Needs state and queue.
local function credentialRefusal(c)
  if now >= c.deadline + (c.state ~= 'awaiting' and RETENTION or 0) then return 'invalid' end
  if channel.state == 'ended' then return 'ended' end
  if c.state == 'cancelled' then return 'cancelled' end
  if c.callbackID ~= '' then return 'consumed' end
  readQueue()
  if c.number > 0 and c.number < head then return 'invalid' end -- it timed out before the store's clock was set back
end

-- Deletes a few expired fields of work.
local function forgetExpired()
  local fields = redis.call('ZRANGEBYSCORE', FORGET, '-inf', now, 'LIMIT', 0, FORGET_BATCH)
  if #fields == 0 then return end
  redis.call('HDEL', WORK, unpack(fields))
  redis.call('ZREM', FORGET, unpack(fields))
end

-- Reads fields of the channel and changes nothing. The state of a channel whose idle
-- time has expired is ended. channel.state is '' if the channel does not exist.
local function inspect(...)
  readFields('flow', 'state', ...)
  if channel.flow == '' then return end
  parseFlow()
  if now > idleAt then channel.state = 'ended' end
end

-- Returns the uncommitted entries of the runtime stream, plus extraBytes, as a fraction
-- of their limits. At 1 or more, frames and callbacks are rejected.
local function backlog(extraBytes)
  return math.max((entries - committed) / maxEntries, (bytes - committedBytes + (extraBytes or 0)) / maxBytes)
end

-- Adds an entry about the session's connection to the runtime stream. At twice the
-- backlog limit such entries are dropped, so that reconnects cannot fill the stream
-- while there is no runtime. Frames are rejected earlier, and the browser resends them.
local function addSessionEvent(entry)
  if backlog() >= 2 then return end
  addEntry(entry)
  saveAndNotify()
end

-- Returns an entry of this channel as JSON.
local function formatEntry(kind, member, value)
  return string.format('{"kind":"%s","channelId":"%s","at":%d,"%s":"%s"}', kind, string.match(META, '{(.+)}'), now, member, value)
end

-- Creates the keys of a channel that do not exist. The members of the sets are never
-- looked up: the message IDs of browsers are UUIDs, those of runtimes are not empty. A set
-- of integers needs half the memory. A stream keeps existing when it becomes empty.
local function createKeys()
  for _, stream in ipairs({ IN, OUT }) do
    if redis.call('EXISTS', stream) == 0 then
      redis.call('XADD', stream, '0-1', '', '')
      redis.call('XDEL', stream, '0-1')
    end
  end
  for _, set in ipairs({ SEEN, SEEN_BEFORE }) do redis.call('SADD', set, NO_UUID) end
  for _, set in ipairs({ SENT, SENT_BEFORE }) do redis.call('SADD', set, '') end
  redis.call('HSET', WORK, '', '')
  redis.call('ZADD', FORGET, NEVER, '')
end

-- Reads fields of the channel after applying expired deadlines: work items time out, the
-- lease of a connection whose instance has died ends, and an idle channel ends.
local function loadChannel(...)
  readFields('flow', 'inLast', 'owner', 'ownerUntil', ...)
  if channel.flow == '' then return end
  parseFlow()
  local idle = now > idleAt
  if now >= dueAt or idle then
    readQueue()
    advanceQueue(idle)
    if idle then addEntry(formatEntry('channel_ended', 'reason', 'idle')) end
    saveAndNotify()
    newestEntry = nil
  end
  if idle then
    endChannel('idle')
  elseif channel.owner ~= '' and channel.owner ~= liveConnection and now >= toNumber(channel.ownerUntil) then
    setField('owner', '')
    addSessionEvent(formatEntry('session', 'event', 'disconnected'))
    newestEntry = nil
  end
end

-- Starts a new epoch of the channel with the 13 arguments that start at ARGV[first], in
-- the order of claim.lua. createKeys, keepAlive and save must follow.
local function openChannel(first)
  local names = { 'epoch', 'team', 'endpoint', 'mode', 'callId', 'transactionId', 'profile', 'historyMessages', 'historyMs' }
  local fields = { 'idleMs', ARGV[first + 11], 'keepMs', ARGV[first + 12], 'openedAt', string.format('%d', now), 'state', 'open' }
  for i, name in ipairs(names) do
    channel[name] = ARGV[first + i - 1]
    if channel[name] ~= '' then
      fields[#fields + 1] = name
      fields[#fields + 1] = channel[name]
    end
  end
  redis.call('HSET', META, unpack(fields))
  channel.state, channel.owner, channel.idleMs, channel.keepMs = 'open', '', ARGV[first + 11], ARGV[first + 12]
  channel.inLast = '0-0'
  entries, bytes, committed, committedBytes = 0, 0, 0, 0
  maxEntries, maxBytes, dueAt, touchAt = tonumber(ARGV[first + 9]), tonumber(ARGV[first + 10]), NEVER, 0
end

-- Returns the number of a stream ID, or nil if it is invalid.
local function parseID(id)
  local number, at = string.match(id, '^(%d+)%-(%d+)$')
  if number and #number <= MAX_DIGITS and #at <= MAX_DIGITS then return tonumber(number) end
end

-- Returns whether the store has lost an item of a stream that it acknowledged before,
-- for example in a failover. newest is the ID of the stream's newest item, removed the
-- number up to which items may have been removed on purpose. id may be empty.
local function isLost(stream, id, newest, removed)
  if id == '' or id == newest then return false end
  local number = parseID(id)
  if not number or number >= toNumber(newest) then return true end
  local item = redis.call('XRANGE', stream, number, number)[1]
  if item then return item[1] ~= id end
  return number > removed
end

-- Returns whether the store has lost a work item that is awaited. id may be empty.
local function isItemLost(id)
  return (id or '') ~= '' and redis.call('HEXISTS', WORK, '@' .. id) == 0
end

-- Makes the session's connection run renew.lua, which checks what the connection relies on
-- and whether the session should be offered.
local function requestRenewal() redis.call('PUBLISH', PREFIX .. 'down', 'R') end

-- Starts a new epoch after a loss of acknowledged data and makes the claim invalid, so
-- that both sides learn of it: cursors of the old epoch cannot be resumed, connections
-- check their position, and the runtime's next call fails with lost. The lease of the
-- claim goes on, so that no other runtime gets the channel meanwhile. Needs epoch.
local function reportLoss()
  setField('epoch', string.sub(channel.epoch, 1, 26) .. string.format('%d', now))
  redis.call('HSET', META, 'claimToken', '', 'lostAt', now)
  requestRenewal()
end

-- Returns why a runtime cannot act on the channel: not_found, lost or claim_lost. It
-- returns nil if it can. With an empty token it acts for the runtime that has the claim. A
-- runtime with a token had a claim, so a channel that does not exist is lost. A channel
-- without a claim token was never claimed, or has lost data. Needs state and claimToken.
local function claimRefusal(token)
  if channel.state == '' then return token == '' and 'not_found' or 'lost' end
  if token == '' or token == channel.claimToken then return nil end
  return channel.claimToken == '' and 'lost' or 'claim_lost'
end

-- Returns why a connection does not own the session: lost, ended, expired (its lease) or
-- not_owner (another connection replaced it). It returns nil if it does. number is the
-- connection's number: if there were fewer connections, the store has lost this one.
local function ownerRefusal(connection, number)
  if channel.owner == connection and connection ~= '' then return nil end
  readFields('state', 'connections')
  if channel.state == '' then return 'lost' end
  if channel.state == 'ended' then return 'ended' end
  if toNumber(channel.connections) < toNumber(number) then return 'lost' end
  return channel.owner == '' and 'expired' or 'not_owner'
end

-- Returns whether a request for the ownership or a claim is older than the one that was
-- granted last. grantedAt is when that one was requested. It is ignored if the store's
-- clock was set back since.
local function isOutdated(requestedAt, grantedAt)
  return requestedAt ~= '' and toNumber(grantedAt) <= now and toNumber(requestedAt) + CLOCK_ERROR < toNumber(grantedAt)
end

-- Removes messages that exceed the history's maximum length or age. Needs outLast.
local function trimHistory()
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

-- Makes messages up to an ID visible that were held back, and publishes them. Needs epoch,
-- outLast and held.
local function showMessages(last)
  if channel.held == '' or toNumber(last) <= toNumber(channel.held) then return end
  local page, notice = readHistory(toNumber(channel.held) + 1, last), {}
  for i = 2, #page, 2 do notice[#notice + 1] = page[i] end
  if #page > 0 then
    local ids = channel.epoch .. ' ' .. newestVisible() .. ' ' .. page[#page - 1]
    redis.call('PUBLISH', PREFIX .. 'down', 'M' .. ids .. '\n' .. table.concat(notice, '\n'))
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

-- Returns whether the session should be offered to runtimes: it is unclaimed and was not
-- offered within OFFER_INTERVAL. Needs claimUntil and offeredAt.
local function needsOffer()
  return toNumber(channel.claimUntil) <= now and now - toNumber(channel.offeredAt) >= OFFER_INTERVAL
end

-- Returns 0, or what the caller should do: 1 offer the session to runtimes, 2 also count
-- that the claim has expired. Unless it returns 0, it changes offeredAt, which the script
-- must save. Needs claimedBy, claimUntil and offeredAt.
local function takeOffer()
  if not needsOffer() then return 0 end
  local expired = channel.offeredAt == '' and channel.claimedBy ~= ''
  channel.offeredAt = string.format('%d', now)
  return expired and 2 or 1
end

-- Returns why a connection cannot own the session: ended, foreign (another team or
-- endpoint) or in_use. It returns nil if it can. A session is in use while the lease of
-- another connection, except the predecessor, has not expired. Needs state, team, endpoint, owner and ownerUntil.
local function connectionRefusal(connection, predecessor, rejectDuplicate, team, endpoint)
  if channel.state == '' then return nil end
  if channel.state == 'ended' then return 'ended' end
  if channel.team ~= team or channel.endpoint ~= endpoint then return 'foreign' end
  local owner = channel.owner
  if rejectDuplicate == '1' and owner ~= '' and owner ~= connection and owner ~= predecessor
    and toNumber(channel.ownerUntil) > now then
    return 'in_use'
  end
end
