-- The functions of every channel script.

local TOUCH_INTERVAL = 60000    -- ms between two extensions of the TTLs of all nine keys, which is expensive
local TOUCH_WITHIN   = 20000    -- ms within which runtimes run touch.lua even without a notice
local RETENTION      = 3600000  -- ms after its deadline for which a credential is kept, to answer repeated callbacks
local NO_MESSAGE     = '0-0'    -- before the first message
local STREAMS        = 'telapi:streams' -- topic that tells instances which open streams to end

local channel = {} -- fields of meta that were read, '' where not set

local touchAt, dueAt, idleAt, entries, bytes, committed, committedBytes, maxEntries, maxBytes -- the field flow
local head, tail, parked  -- the field queue, if it was read
local newestEntry         -- ID of the last entry that was added and not announced; nil if there is none
local added, entryBefore, bytesBefore -- these entries, and the ID and the number of bytes before them
local liveConnection = '' -- ID of the connection that runs this script; its lease does not expire meanwhile

-- Makes a full store run the rest of the script. A store without memory rejects a command that
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
  if not newestEntry then added, entryBefore, bytesBefore = {}, channel.inLast, bytes end
  added[#added + 1] = entry
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

-- Notifies the runtime of entries that were added, and of the time until the next work item
-- times out, unless the runtime runs touch.lua before.
local function notify()
  if not newestEntry and dueAt - now > TOUCH_WITHIN then return end
  local wait = dueAt < NEVER and string.format('%d', dueAt - now) or ''
  local notice = newestEntry and 'E' .. entryBefore .. ' ' .. newestEntry .. ' ' .. wait or 'D' .. wait
  if newestEntry and bytes - bytesBefore <= MAX_NOTICE then notice = notice .. '\n' .. table.concat(added, '\n') end
  redis.call('PUBLISH', PREFIX .. 'up', notice)
  newestEntry = nil
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
  redis.call('PUBLISH', STREAMS, string.match(META, '{(.+)}'))
  expireIn(redis.call('HGET', META, 'keepMs'))
end

-- Work items are numbered in the order in which they are registered. The hash work
-- has these fields:
--   <number>  of an unsettled work item: the time from which its entries can be
--             added to the stream, a space, and the entries. An awaited item has its
--             deadline, @ and its ID, and the timeout entry. A parked one has 0 and its
--             callback's entries, a cancelled one 0 and no entries. Only the deadline of
--             the first item needs a timer, since later items wait for it. An item with parked
--             parts starts with +, which the first item never does
--   <number>+<part>  the entry of a parked part of a streamed answer
--   <digest>  of a credential: state (awaiting, streaming, routed, parked or cancelled), number of
--             the work item (0 for a channel credential), kind, deadline, work item ID,
--             and after a callback its ID, the digest of its body and the receipt, which
--             starts with deadline, @ and ID of the item it waits for, and a space, if it was parked.
--             The digest of a streamed answer is +, the digests of its parts and, once it is settled, a dot
--             and the digest of its last line
--   @<ID>     of a work item: the digest of its credential
--   <digest> <ID or body digest>  a use of a channel credential: callback ID, body digest and receipt
--   #<number> the field of a use; uses are numbered, so that the oldest can be dropped

local function addPackedEntries(item, from)
  while from <= #item do
    local colon = string.find(item, ':', from, true)
    local last = colon + string.sub(item, from, colon - 1)
    addEntry(string.sub(item, colon + 1, last))
    from = last + 1
  end
end

-- Removes the parked parts of a streamed answer and returns them. Needs readQueue.
local function takeParts(number)
  local list = {}
  while true do
    local field = string.format('%d+%d', number, #list + 1)
    local entry = redis.call('HGET', WORK, field)
    if not entry then return list end
    redis.call('HDEL', WORK, field)
    parked = parked - #entry
    list[#list + 1] = entry
  end
end

-- Adds the entries of answered and timed out work items to the stream, up to the first
-- item that is still awaited. With skipAwaited, awaited items are dropped. Needs
-- readQueue; saveAndNotify must follow.
local function advanceQueue(skipAwaited)
  dueAt = NEVER
  while head <= tail do
    local item = redis.call('HGET', WORK, head) or '0 '
    if string.sub(item, 1, 1) == '+' then
      for _, entry in ipairs(takeParts(head)) do addEntry(entry) end
      item = string.sub(item, 2)
      redis.call('HSET', WORK, head, item)
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
    redis.call('HDEL', WORK, head)
    head = head + 1
  end
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
  end
  if idle then
    endChannel('idle')
  elseif channel.owner ~= '' and channel.owner ~= liveConnection and now >= toNumber(channel.ownerUntil) then
    setField('owner', '')
    addSessionEvent(formatEntry('session', 'event', 'disconnected'))
  end
end

-- Returns why a runtime cannot act on the channel: not_found, lost or claim_lost. It
-- returns nil if it can. With an empty token it acts for the runtime that has the claim. A
-- runtime with a token had a claim, so a channel that does not exist is lost. A channel
-- without a claim token was never claimed, or has lost data. Needs state and claimToken.
local function claimRejection(token)
  if channel.state == '' then return token == '' and 'not_found' or 'lost' end
  if token == '' or token == channel.claimToken then return nil end
  return channel.claimToken == '' and 'lost' or 'claim_lost'
end
