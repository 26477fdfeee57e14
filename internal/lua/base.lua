-- telapi channel scripts, version 1
--
-- Every channel script starts with this file. It names the keys, reads the clock,
-- and defines what the fast versions (*_fast.lua) share with the full scripts.
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
local META, IN, OUT, SEEN, SENT, WORK, FORGET, SEEN_BEFORE, SENT_BEFORE = unpack(KEYS)
local PREFIX = string.sub(META, 1, -5) -- of the channel's keys and pub/sub channels

-- Later than any time the scripts handle. It has 14 digits: Lua prints larger
-- numbers in scientific notation.
local NEVER = 99999999999999

-- Every 16th entry carries the bytes of all entries up to it, so that commit.lua
-- counts committed bytes exactly and reads at most 16 entries for it.
local TOTAL_INTERVAL = 16

-- Message IDs of the browser are remembered in two sets. When seen has this many,
-- it becomes seenBefore.
local MAX_SEEN = 4096

-- frame_fast.lua leaves one batch per 256 entries to frame.lua, which replaces a
-- full set of message IDs.
local FRAME_CLEANUP_INTERVAL = 256

-- The history is trimmed once per 128 messages, and exactly when it is read.
local TRIM_INTERVAL = 128

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000) -- Unix ms

-- Returns the ID of an item that is added now to either stream: <number>-<now>.
-- Numbers count from 1 without gaps. An ID never occurs twice, not even after a
-- failover that lost the newest items: a reused number has another time.
-- string.format takes half the time of concatenating numbers.
local function newID(number) return string.format('%d-%d', number, now) end

-- The field flow of meta. It is one field because most scripts need all of it:
--   touchAt         when the next activity extends the channel's idle time
--   dueAt           deadline of the first awaited work item, or NEVER
--   idleAt          when the idle channel ends
--   entries, bytes  ever added to the runtime stream
--   committed, committedBytes  the part of them that the runtime has committed
--   maxEntries, maxBytes       how many of them may be uncommitted
local touchAt, dueAt, idleAt, entries, bytes, committed, committedBytes, maxEntries, maxBytes

local function parseFlow(text)
  local t, d, i, e, b, c, cb, me, mb = string.match(text, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
  touchAt, dueAt, idleAt, entries, bytes = tonumber(t), tonumber(d), tonumber(i), tonumber(e), tonumber(b)
  committed, committedBytes, maxEntries, maxBytes = tonumber(c), tonumber(cb), tonumber(me), tonumber(mb)
end

-- The field queue of meta: the numbers of the first and the last work item that
-- are not settled, and the bytes of parked callbacks. It is only written by
-- scripts that have read it.
local head, tail, parked

local function parseQueue(text)
  local h, t, p = string.match(text, '^(%d+) (%d+) (-?%d+)$')
  head, tail, parked = tonumber(h or 1), tonumber(t or 0), tonumber(p or 0)
end

-- Writes flow, and queue if it was read.
local function save()
  local flow = string.format('%d %d %d %d %d %d %d %d %d',
    touchAt, dueAt, idleAt, entries, bytes, committed, committedBytes, maxEntries, maxBytes)
  if head then
    redis.call('HSET', META, 'flow', flow, 'queue', string.format('%d %d %d', head, tail, parked))
  else
    redis.call('HSET', META, 'flow', flow)
  end
end

local newestEntry         -- ID of the last entry that this script added
local streamIsNew = false -- this script added the first entry, so the stream has no TTL yet

-- Adds an entry to the runtime stream. save and notify must follow.
local function addEntry(entry)
  entries, bytes = entries + 1, bytes + #entry
  newestEntry, streamIsNew = newID(entries), streamIsNew or entries == 1
  if entries % TOTAL_INTERVAL > 0 then
    redis.call('XADD', IN, newestEntry, 'entry', entry)
  else
    redis.call('XADD', IN, newestEntry, 'entry', entry, 'total', string.format('%d', bytes))
  end
end

-- Notifies the runtime of added entries, and of the time until the next work item
-- times out.
local function notify()
  local wait = dueAt < NEVER and string.format('%d', dueAt - now) or ''
  redis.call('PUBLISH', PREFIX .. 'up', newestEntry and 'E' .. newestEntry .. ' ' .. wait or 'D' .. wait)
end

-- Formats a credential for work. Its parts are: state (awaiting, routed, parked or
-- cancelled), number of the work item (0 for a channel credential), kind, deadline,
-- work item ID, and once it is answered callback ID, digest of the body and receipt.
local function formatCredential(...) return table.concat({ ... }, ' ') end

-- Returns an entry with the work item's ID as its first member. The ID consists of
-- characters that need no escaping, see await.lua.
local function withWorkItemID(entry, id) return '{"workItemId":"' .. id .. '",' .. string.sub(entry, 2) end
