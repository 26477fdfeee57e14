-- telapi channel scripts, version 1
--
-- Every script of a channel is this file followed by its own. It holds what the
-- scripts share.
--
-- KEYS[1]  meta: a hash, one field per thing known of the channel
-- KEYS[2]  in:   the stream towards the runtime (field entry, and total on every 16th)
-- KEYS[3]  out:  the history towards the browser (field message)
-- KEYS[4]  seen: message ids of the browser
-- KEYS[5]  sent: message ids of the runtime
-- KEYS[6]  work: a hash of work items and their credentials, see below
-- KEYS[7]  forget: fields of work, scored by when they may go
-- KEYS[8]  seenBefore: message ids of the browser, before those that are in seen
-- KEYS[9]  sentBefore: likewise of the runtime
--
-- Ids of both streams are <number>-<ms>: numbers count from 1 without a gap,
-- ms is when it was added. An id never comes twice, not even after a failover
-- that lost the newest ones, since the same number then has another ms.
local META, IN, OUT, SEEN, SENT, WORK, FORGET, SEEN_BEFORE, SENT_BEFORE = unpack(KEYS)
local BASE = string.sub(META, 1, -5)

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local channel = {} -- field of meta → value, empty where there is none

local function fetch(...)
  local names, values = { ... }, redis.call('HMGET', META, ...)
  for i = 1, #names do channel[names[i]] = values[i] or '' end
end

local function set(name, value)
  channel[name] = value
  redis.call('HSET', META, name, value)
end

-- The number of a field, or of an id.
local function num(value) return tonumber(value) or tonumber(string.match(value, '^%d+') or '0') end

-- The id of what is added now under a number. Formatted, which costs half of what
-- joining numbers to strings does.
local function id(number) return string.format('%d-%d', number, now) end

-- The field flow, one because every frame needs it whole: when the end of the
-- idle channel is to be put off next, when the first of the awaited work items is
-- over its time, and when the idle channel ends; entries and bytes ever put on the
-- runtime's stream, those that are committed, and how many may not be.
local touchAt, dueAt, idleAt, entries, bytes, committed, committedBytes, maxEntries, maxBytes
local NEVER = 99999999999999

-- The field queue, for scripts that have to do with work items: the numbers of
-- the first and the last one that are not settled, and the bytes that are parked.
local head, tail, parked

local function save()
  local flow = string.format('%d %d %d %d %d %d %d %d %d',
    touchAt, dueAt, idleAt, entries, bytes, committed, committedBytes, maxEntries, maxBytes)
  if head then
    redis.call('HSET', META, 'flow', flow, 'queue', head .. ' ' .. tail .. ' ' .. parked)
  else
    redis.call('HSET', META, 'flow', flow)
  end
end

local function live(milliseconds)
  for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, milliseconds) end
end

local function finish(reason)
  touchAt, idleAt = NEVER, NEVER
  save()
  redis.call('HSET', META, 'state', 'ended', 'endReason', reason, 'owner', '')
  channel.state, channel.owner = 'ended', ''
  redis.call('PUBLISH', BASE .. 'down', 'X' .. reason)
  live(redis.call('HGET', META, 'keepMs'))
end

-- Puts off the end of an idle channel. Once in a while is enough, except for
-- keys that are new and have no TTL yet. save must follow where it says so.
local function touch(fresh)
  if not fresh and now < touchAt then return false end
  fetch('idleMs', 'keepMs')
  local idle = num(channel.idleMs)
  touchAt, idleAt = now + math.min(60000, math.floor(idle / 10)), now + idle
  live(idle + num(channel.keepMs))
  return true
end

-- Adds an entry to the runtime's stream; announce must follow. Now and then it
-- says how many bytes there were up to here: commit counts on from there.
local function add(entry)
  entries, bytes = entries + 1, bytes + #entry
  if entries % 16 > 0 then
    redis.call('XADD', IN, id(entries), 'entry', entry)
  else
    redis.call('XADD', IN, id(entries), 'entry', entry, 'total', string.format('%d', bytes))
  end
  channel.isNew = channel.isNew or entries == 1
  channel.added = true
end

-- Notes what was added and tells the runtime, and with it how long to wait for
-- the next work item.
local function announce()
  touch(channel.isNew)
  save()
  local wait = dueAt < NEVER and dueAt - now or ''
  redis.call('PUBLISH', BASE .. 'up', channel.added and 'E' .. id(entries) .. ' ' .. wait or 'D' .. wait)
end

-- Message ids are remembered in two sets, so that the oldest can go without being
-- looked for: once the younger set has its fill it takes the place of the older.
-- Which of some ids are remembered, as id → true or false.
local function recall(set, before, ids)
  if #ids == 0 then return {} end
  local young, old, known = redis.call('SMISMEMBER', set, unpack(ids)), redis.call('SMISMEMBER', before, unpack(ids)), {}
  for i, id in ipairs(ids) do known[id] = young[i] == 1 or old[i] == 1 end
  return known
end

-- Remembers ids; touch must follow.
local function remember(set, before, fill, ids)
  if #ids == 0 then return end
  local size = redis.call('SCARD', set)
  if size >= fill then
    redis.call('UNLINK', before)
    redis.call('RENAME', set, before)
  end
  if size == 0 or size >= fill then touchAt = 0 end -- a set that is new needs a TTL
  redis.call('SADD', set, unpack(ids))
end

-- Work items are numbered as they are registered. Until it is settled, the
-- field of an item's number in work says what to put on the stream at its turn:
-- the time from which on that may be, a blank, and the entries. An item that is
-- awaited has its deadline there and the entry that tells of it; one that was
-- answered early has 0 and its entries, one that was cancelled 0 and none. So
-- nothing but the deadline of the first item ever needs watching.
--
-- The field of a credential's digest is: state (awaiting, routed, parked or
-- cancelled), number (0: the channel's, which has no turn), kind, deadline, work
-- item, and once it is answered callback, digest of the body, and the receipt.
-- The field @item is the digest of the item's credential.
local RETENTION = 3600000 -- after the deadline

local function pack(list)
  local packed = {}
  for i, entry in ipairs(list) do packed[i] = #entry .. ':' .. entry end
  return table.concat(packed)
end

local function queue()
  if head then return end
  if not channel.queue then fetch('queue') end
  local h, t, p = string.match(channel.queue, '^(%d+) (%d+) (-?%d+)$')
  head, tail, parked = tonumber(h or 1), tonumber(t or 0), tonumber(p or 0)
end

-- Puts on the stream what has its turn, and with skip also what waits for items
-- that are still awaited, which are given up. Needs queue; announce must follow.
local function advance(skip)
  dueAt = NEVER
  while head <= tail do
    local item = redis.call('HGET', WORK, head) or '0 '
    local blank = string.find(item, ' ', 1, true)
    local at = tonumber(string.sub(item, 1, blank - 1))
    if at <= now then
      if at == 0 then parked = parked - (#item - blank) end
      local from = blank + 1
      while from <= #item do
        local colon = string.find(item, ':', from, true)
        local last = colon + string.sub(item, from, colon - 1)
        add(string.sub(item, colon + 1, last))
        from = last + 1
      end
    elseif not skip then
      dueAt = at
      return
    end
    redis.call('HDEL', WORK, head)
    head = head + 1
  end
end

-- A credential as a list of its parts, or nothing.
local function credential(digest)
  local value = redis.call('HGET', WORK, digest)
  if value then return { string.match(value, '^(%S+) (%d+) (%S+) (%d+) (%S+) (%S*) (%S*) (.*)$') } end
end

-- Lets go of a few fields of work that are over their time. Whoever calls it has
-- just added some, so that neither key can vanish and come again without a TTL.
local function forget()
  local gone = redis.call('ZRANGEBYSCORE', FORGET, '-inf', now, 'LIMIT', 0, 8)
  if #gone == 0 then return end
  redis.call('HDEL', WORK, unpack(gone))
  redis.call('ZREM', FORGET, unpack(gone))
end

-- Reads what a script needs to know of its channel, and first does what is due:
-- ends it if it is idle, and gives up what was awaited for too long.
local function load(...)
  fetch('flow', ...)
  if channel.flow == '' then return end
  local t, d, i, e, b, c, cb, me, mb = string.match(channel.flow, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
  entries, bytes, committed, committedBytes = tonumber(e), tonumber(b), tonumber(c), tonumber(cb)
  maxEntries, maxBytes, touchAt, idleAt, dueAt = tonumber(me), tonumber(mb), tonumber(t), tonumber(i), tonumber(d)
  local idle = now > idleAt
  if now >= dueAt or idle then
    queue()
    advance(idle)
    if idle then
      add(string.format('{"kind":"channel_ended","channelId":"%s","at":%d,"reason":"idle"}', string.match(META, '{(.+)}'), now))
    end
    announce()
    channel.added = nil
  end
  if idle then finish('idle') end
end

-- What the runtime has not committed, and as many bytes more, in parts of what
-- it may leave so.
local function backlog(more)
  return math.max((entries - committed) / maxEntries, (bytes - committedBytes + (more or 0)) / maxBytes)
end

-- Begins a life of the channel. from is the place of the arguments in ARGV.
local function open(from)
  local names = { 'epoch', 'team', 'endpoint', 'mode', 'callId', 'transactionId', 'profile', 'historyMessages', 'historyMs' }
  for i, name in ipairs(names) do set(name, ARGV[from + i - 1]) end
  entries, bytes, committed, committedBytes = 0, 0, 0, 0
  maxEntries, maxBytes, dueAt = ARGV[from + 9], ARGV[from + 10], NEVER
  set('idleMs', ARGV[from + 11])
  set('keepMs', ARGV[from + 12])
  set('openedAt', now)
  set('state', 'open')
  touch(true)
  save()
end

-- Lets go of history that is over its number or its age. Needs outLast.
local function trim()
  fetch('historyMessages', 'historyMs', 'trimmed')
  local function first(from) return redis.call('XRANGE', OUT, from, '+', 'COUNT', 1)[1] end
  local from = math.max(1, num(channel.outLast) - num(channel.historyMessages) + 1)
  local oldest = first(from)
  while oldest and now - string.match(oldest[1], '%d+$') > num(channel.historyMs) do
    from = num(oldest[1]) + 1
    oldest = first(from)
  end
  local gone = redis.call('XREVRANGE', OUT, from - 1, '-', 'COUNT', 1)[1]
  if not gone then return end
  redis.call('XTRIM', OUT, 'MINID', from)
  set('trimmed', gone[1])
end

-- The history from a message number on, as id, message, id, message …
local function history(number)
  local list = {}
  for _, item in ipairs(redis.call('XRANGE', OUT, number, '+')) do
    list[#list + 1] = item[1]
    list[#list + 1] = item[2][2]
  end
  return list
end

-- Everything after a position; nothing at all when it is none of this life's,
-- or when something after it is gone. Needs epoch and outLast.
local function since(epoch, id)
  trim()
  if channel.epoch == '' or epoch ~= channel.epoch then return false end
  if id ~= channel.outLast and id ~= channel.trimmed then
    local number, at = string.match(id, '^(%d+)%-(%d+)$')
    if not number or #number > 18 or #at > 18 then return false end
    if #redis.call('XRANGE', OUT, id, id) == 0 then return false end
  end
  return history(num(id) + 1)
end

-- Tells once a minute that no runtime has the channel. Needs claimUntil and
-- offeredAt.
local function offer()
  if num(channel.claimUntil) > now or now - num(channel.offeredAt) < 60000 then return 0 end
  set('offeredAt', now)
  return 1
end
