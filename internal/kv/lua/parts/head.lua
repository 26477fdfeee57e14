-- Every channel script starts with this file. The complete script X is: head.lua, X_fast.lua
-- if it exists, core.lua, the parts that X.lua names in its line "uses", and X.lua. A script
-- names only the parts that it needs, because creating a function takes 0.2 µs in every
-- call. A fast version handles the common case in about half the time: it runs before any
-- function is created, and makes fewer calls.
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
-- The last argument of every script says when it may run: two times in Unix ms of the
-- store's clock, or empty. After the second it replies with the error LATE: a caller that has
-- reported a failure can rely on it that the script has no effect later. Before the first it
-- replies with the error CLOCK: the store's clock was set back after the caller compared it
-- with its own, so that the second is too late.
-- Only the service runs the scripts, so they do not check their other arguments.
local META, IN, OUT, SEEN, SENT, WORK, FORGET, SEEN_BEFORE, SENT_BEFORE = unpack(KEYS)
local notBefore, notAfter = string.match(table.remove(ARGV), '^(%d+) (%d+)$')
local PREFIX = string.sub(META, 1, -5) -- of the channel's keys and pub/sub channels

-- A time in the far future. It has 14 digits because Lua prints larger numbers in
-- scientific notation.
local NEVER = 99999999999999

-- Every 16th entry has the total size of all entries up to it, so that commit.lua
-- counts committed bytes exactly and reads at most 16 entries.
local TOTAL_INTERVAL = 16

-- Recent message IDs of the browser are kept in two sets. When seen has MAX_SEEN IDs,
-- it replaces seenBefore.
local MAX_SEEN = 4096

local OFFER_INTERVAL = 60000 -- ms between two offers of an unclaimed session

-- A notice has the entries that it announces if they are not larger in total. Otherwise the
-- runtime reads them.
local MAX_NOTICE = 8192

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000) -- Unix ms

if notAfter and now > tonumber(notAfter) then return redis.error_reply('LATE the call arrived after its deadline') end
if notBefore and now < tonumber(notBefore) then return redis.error_reply("CLOCK the store's clock was set back") end

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

-- Pattern and format of the field queue of meta: the numbers of the first and the last
-- work item that are not settled, and the bytes of parked callbacks.
local QUEUE_PATTERN = '^(%d+) (%d+) (-?%d+)$'
local QUEUE_FORMAT = '%s %s %s'
