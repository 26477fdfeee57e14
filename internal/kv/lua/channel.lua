-- A channel: its keys, the fields of meta, and what happens at its deadlines. keys.go describes the keys.
--
-- All keys exist until the end of the channel is committed, so that a cluster can move a slot while its channels are in
-- use: a script fails with TRYAGAIN if a key is missing on the node that it is moved from.
--
-- Arguments with one name have one meaning in all scripts. Conditions are 1 or empty, durations are in ms.
--   token                 of the claim; empty: act for the runtime that has the claim
--   connection, number    ID of a browser's connection, and its number, which the script connect returns
--   message, entry, item  ID of the newest message, entry or registered work item that the caller knows; empty if there is
--                         none. If it is missing, the store has lost data. An item has its number and @ before its ID
--   early                 replicas may not have had what is lost. Then its loss concerns only the caller
--   epoch                 of the channel when the caller joined it
--   requestedAt           when a claim or a connection was requested, in Unix ms of the store's clock; empty: now
--   position              ID of the last processed entry, to commit; empty: none
--   digest                SHA-256 of a credential, in hex
--   kind                  of a work item: bot, llm or tool; of a callback, that of its route
--   workItemID            from a callback's path or credential; empty: neither has one, so it is inserted into every entry

local META       = KEYS[1]
local IN         = KEYS[2]
local OUT        = KEYS[3]
local PREFIX     = string.sub(META, 1, -5) -- of the channel's keys and topics
local CHANNEL_ID = string.match(META, '{(.+)}')
local STREAMS    = 'telapi:streams' -- topic that tells instances which streamed answers to end

local NEVER          = 99999999999999 -- a far time; with more digits, Lua would print it in scientific notation
local TOUCH_INTERVAL = 60000          -- ms between two extensions of the TTLs of all keys
local TOUCH_WITHIN   = 20000          -- ms within which runtimes run the script touch even without a notice
local RETENTION      = 3600000        -- ms after its deadline for which a credential is kept at most, to answer repeated callbacks
local DIGEST_LENGTH  = 64             -- of a credential, in hex
local TOTAL_INTERVAL = 16             -- entries; then one has the size of all up to it, so that a commit reads only these
local MAX_NOTICE     = 8192           -- bytes of entries that a notice has; the runtime reads more of them

-- Unneeded fields of meta are looked for with every FORGET_INTERVAL-th message, frame, work item and use of a channel
-- credential.
local FORGET_INTERVAL = 16

local BATCH = 1000 -- fields and values of one command: an even number that unpack can return

-- Format of stream IDs: number and time in ms. Numbers start at 1 and have no gaps. IDs are unique even after a failover
-- that lost the newest items: a reused number has another time.
local ID_FORMAT = '%d-%d'

-- Unix ms of the store's clock.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

-- The fields of meta that were read, '' where not set.
--
-- The last argument of every channel script says when it may run: two times of the store's clock, or empty. After the
-- second it fails with LATE: a caller that has reported a failure can rely on it that the script has no effect later.
-- Before the first it fails with CLOCK: the clock was set back after the caller compared it with its own, so that the
-- second is too late. Only the service runs the scripts, so they do not check their other arguments.
local channel = {}
local notBefore, notAfter = string.match(table.remove(ARGV), '^(%d+) (%d+)$')
if notAfter and now > tonumber(notAfter) then return redis.error_reply('LATE the call arrived after its deadline') end
if notBefore and now < tonumber(notBefore) then return redis.error_reply("CLOCK the store's clock was set back") end

-- The field flow. It is one field because most scripts need all of it:
--   touchAt         time from which activity extends the channel's idle time again, at most the end of the owner's lease
--   dueAt           deadline of the first awaited work item, or NEVER
--   idleAt          time at which the channel ends if it stays idle
--   entries, bytes  number and size of all entries of the runtime stream so far
--   committed, committedBytes  number and size of the committed entries
--   maxEntries, maxBytes       limits of the uncommitted entries
local touchAt, dueAt, idleAt, entries, bytes, committed, committedBytes, maxEntries, maxBytes

-- Entries that were added and not announced: the newest ID, or nil if there is none; their texts; and the ID and the size
-- of all entries before them.
local newestEntry, added, entryBefore, bytesBefore

local announcedDueAt -- the runtime knows this deadline

local liveConnection = '' -- ID of the connection that runs this script; its lease does not expire meanwhile

local readOnly -- whether the script changes nothing

-- Makes a full store run the rest of the script. A store without memory rejects a command that adds data, but only if the
-- script has changed nothing before: here it deletes a field that does not exist. Scripts call it first that remove data,
-- or that must work so that data can be removed.
local function runWhenFull() redis.call('HDEL', META, '') end

local function readFields(...)
  local names, values = { ... }, redis.call('HMGET', META, ...)
  for i = 1, #names do channel[names[i]] = values[i] or '' end
end

local function setField(name, value)
  channel[name] = value
  redis.call('HSET', META, name, value)
end

-- Appends a field and its value, or one value.
local function append(list, field, value)
  list[#list + 1] = field
  list[#list + 1] = value
end

-- Returns the number in a field or at the start of a stream ID; 0 if there is none.
local function toNumber(value) return tonumber(value) or tonumber(string.match(value, '^%d+') or '0') end

-- Returns the ID of the newest entry of the runtime stream; empty if there was none.
local function lastEntryID() return entries == 0 and '' or channel.inLast end

-- Writes flow and inLast, queue if it was read, and the fields in the arguments: name, value, name, value …
local function save(...)
  local flow = string.format('%d %d %d %d %d %d %d %d %d', touchAt, dueAt, idleAt, entries, bytes, committed, committedBytes, maxEntries, maxBytes)
  if head then
    redis.call('HSET', META, 'flow', flow, 'inLast', channel.inLast, 'queue', string.format('%d %d %d', head, tail, parked), ...)
  else
    redis.call('HSET', META, 'flow', flow, 'inLast', channel.inLast, ...)
  end
end

-- Adds an entry to the runtime stream. save and notify must follow.
local function addEntry(entry)
  if not newestEntry then added, entryBefore, bytesBefore = {}, channel.inLast, bytes end
  added[#added + 1] = entry
  entries, bytes = entries + 1, bytes + #entry
  newestEntry = string.format(ID_FORMAT, entries, now)
  channel.inLast = newestEntry
  local fields = { 'entry', entry }
  if entries % TOTAL_INTERVAL == 0 then append(fields, 'total', string.format('%d', bytes)) end
  redis.call('XADD', IN, newestEntry, unpack(fields))
end

local function expireIn(milliseconds)
  local ttl = string.format('%d', milliseconds) -- once: Redis is slow to format a number
  for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, ttl) end
end

-- Extends the channel's idle time and its keys' TTLs. save must follow.
local function keepAlive() -- rare
  if not channel.idleMs then readFields('idleMs', 'keepMs') end
  local idle = toNumber(channel.idleMs)
  touchAt, idleAt = now + math.min(TOUCH_INTERVAL, math.floor(idle / 10)), now + idle
  if channel.owner ~= '' then touchAt = math.min(touchAt, toNumber(channel.ownerUntil)) end
  expireIn(idle + toNumber(channel.keepMs))
end

-- Returns the ms until the next work item times out or the owner's lease expires; '' if there is neither.
local function untilDeadline()
  local deadline = channel.owner == '' and dueAt or math.min(dueAt, toNumber(channel.ownerUntil))
  return deadline == NEVER and '' or string.format('%d', deadline - now)
end

-- Notifies the runtime of entries that were added, and of a new deadline of the next work item unless the runtime runs
-- the script touch before.
local function notify()
  if not newestEntry and (dueAt == announcedDueAt or dueAt - now > TOUCH_WITHIN) then return end
  local wait = untilDeadline()
  local notice = newestEntry and 'E' .. entryBefore .. ' ' .. newestEntry .. ' ' .. wait or 'D' .. wait
  if newestEntry and bytes - bytesBefore <= MAX_NOTICE then notice = notice .. '\n' .. table.concat(added, '\n') end
  redis.call('PUBLISH', PREFIX .. 'up', notice)
  newestEntry, announcedDueAt = nil, dueAt
end

-- Extends the channel's idle time and its keys' TTLs if it is time to do so.
local function keepAliveIfDue()
  if now < touchAt then return end
  keepAlive()
  save()
end

-- Saves flow, queue and the fields in the arguments after a change of the stream or of work items. It extends the TTLs
-- only then: a full store would accept everything that follows.
local function saveAndNotify(...)
  save(...)
  keepAliveIfDue()
  notify()
end

-- Deletes fields of meta that are not needed any more: IDs, uses and settled work items beyond their maximum number, and
-- credentials that are invalid with their work items. It looks at four times as many fields as items were added since, so
-- that at most half of the fields are such. The embedded store ignores COUNT and returns all fields: then the next calls,
-- which would look at as many, do nothing.
local function forget(count) -- rare
  readFields('search', 'seen', 'outLast', 'uses', 'queue')
  local wanted = 4 * count
  local cursor, ahead = string.match(channel.search, '^(%d+) (%d+)$')
  if ahead and tonumber(ahead) >= wanted then
    setField('search', string.format('%s %d', cursor, ahead - wanted))
    return
  end
  local lastSeen, lastSent = toNumber(channel.seen) - MAX_SEEN, toNumber(channel.outLast) - MAX_SENT
  local oldestItem = toNumber(channel.queue) - MAX_SETTLED
  local page, fields = redis.call('HSCAN', META, cursor or '0', 'COUNT', wanted), {}
  for i = 1, #page[2], 2 do
    local field, value = page[2][i], page[2][i + 1]
    local first, c = string.sub(field, 1, 1), #field == DIGEST_LENGTH and parseCredential(value)
    if c then
      if now >= c.deadline + RETENTION or c.number > 0 and c.number < oldestItem then append(fields, field, '@' .. c.id) end
    elseif first == '<' or first == '>' then
      if tonumber(value) <= (first == '<' and lastSeen or lastSent) then append(fields, field) end
    elseif string.find(field, ' ', 1, true) and isUseForgotten(value) then
      append(fields, field)
    end
  end
  for from = 1, #fields, BATCH do redis.call('HDEL', META, unpack(fields, from, math.min(from + BATCH - 1, #fields))) end
  setField('search', string.format('%s %d', page[1], math.max(0, #page[2] / 2 - wanted)))
end

-- Calls forget with every FORGET_INTERVAL-th item. number is that of the newest one, count how many are new.
local function forgetEvery(number, count)
  if number % FORGET_INTERVAL < count then forget(FORGET_INTERVAL + count) end
end

-- Returns the uncommitted entries of the runtime stream, plus extraBytes, as a fraction of their limits. At 1 or more,
-- frames and callbacks are rejected.
local function backlog(extraBytes)
  return math.max((entries - committed) / maxEntries, (bytes - committedBytes + extraBytes) / maxBytes)
end

-- Adds an entry about the session's connection to the runtime stream. At twice the backlog limit such entries are
-- dropped, so that reconnects cannot fill the stream while there is no runtime.
local function addSessionEvent(entry)
  if backlog(0) >= 2 then return end
  addEntry(entry)
  saveAndNotify()
end

local function formatEntry(kind, member, value)
  return string.format('{"kind":"%s","channelId":"%s","at":%d,"%s":"%s"}', kind, CHANNEL_ID, now, member, value)
end

local function endChannel(reason)
  touchAt, idleAt = NEVER, NEVER
  save('state', 'ended', 'endReason', reason, 'owner', '')
  channel.state, channel.owner = 'ended', ''
  redis.call('PUBLISH', PREFIX .. 'down', 'X' .. reason)
  redis.call('PUBLISH', STREAMS, CHANNEL_ID)
  expireIn(redis.call('HGET', META, 'keepMs'))
end

local function applyDeadlines(leaseExpired) -- rare
  local idle = now > idleAt
  if now >= dueAt or idle then
    if not head then
      readFields('queue')
      parseQueue()
    end
    advanceQueue(idle)
    if idle then addEntry(formatEntry('channel_ended', 'reason', 'idle')) end
    saveAndNotify()
  end
  if idle then
    endChannel('idle')
  elseif leaseExpired then
    setField('owner', '')
    addSessionEvent(formatEntry('session', 'event', 'disconnected'))
  end
end

-- Reads fields of the channel after applying expired deadlines, unless readOnly: work items time out, the lease of a
-- connection whose instance has died ends, and an idle channel ends.
local function loadChannel(...)
  readFields('flow', 'inLast', 'owner', 'ownerUntil', ...)
  if channel.flow == '' then return end
  local t, d, i, e, b, c, cb, me, mb = string.match(channel.flow, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
  touchAt, dueAt, idleAt, entries, bytes = tonumber(t), tonumber(d), tonumber(i), tonumber(e), tonumber(b)
  committed, committedBytes, maxEntries, maxBytes = tonumber(c), tonumber(cb), tonumber(me), tonumber(mb)
  announcedDueAt = dueAt
  if channel.queue then parseQueue() end
  local leaseExpired = channel.owner ~= '' and channel.owner ~= liveConnection and now >= toNumber(channel.ownerUntil)
  if not readOnly and (now >= dueAt or now > idleAt or leaseExpired) then applyDeadlines(leaseExpired) end
end

-- Reads fields of the channel and changes nothing. The state is '' if the channel does not exist, and ended if its idle
-- time has expired.
local function inspect(...)
  readOnly = true
  loadChannel('state', ...)
  if channel.flow ~= '' and now > idleAt then channel.state = 'ended' end
end

-- Applies the expired deadlines of a channel. It does not extend the channel's idle time.
--
-- returns  as untilDeadline, but -1 for ''; -2 if the channel has ended and all entries are committed
function touch()
  runWhenFull()
  loadChannel('state')
  if channel.flow == '' then return -1 end
  if channel.state == 'ended' and committed == entries then return -2 end
  return tonumber(untilDeadline()) or -1
end

-- Ends a channel.
--
-- ARGV[3…]  the last entries of the stream
-- returns  'done', also if the channel has ended before, or as claimRejection
--
-- Atomic so that no entry follows the last ones. The entries of parked callbacks are added before them, in order; awaited
-- work items are dropped.
function end_channel(token, reason)
  runWhenFull()
  loadChannel('state', 'claimToken', 'queue')
  local rejection = claimRejection(token)
  if rejection then return rejection end
  if channel.state == 'ended' then return 'done' end
  advanceQueue(true)
  for i = 3, #ARGV do addEntry(ARGV[i]) end
  saveAndNotify()
  endChannel(reason)
  return 'done'
end
