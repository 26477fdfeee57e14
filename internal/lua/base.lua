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

-- This file defines formats and patterns rather than functions: creating functions
-- takes a good part of a fast version's time.

-- Format of stream IDs: number and time in ms. Numbers count from 1 without gaps. An
-- ID never occurs twice, not even after a failover that lost the newest items: a
-- reused number has another time.
local ID_FORMAT = '%d-%d'

-- Pattern and format of the field flow of meta. It is one field because most scripts
-- need all of it:
--   touchAt         when the next activity extends the channel's idle time
--   dueAt           deadline of the first awaited work item, or NEVER
--   idleAt          when the idle channel ends
--   entries, bytes  ever added to the runtime stream
--   committed, committedBytes  the part of them that the runtime has committed
--   maxEntries, maxBytes       how many of them may be uncommitted
local FLOW_PATTERN = '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$'
local FLOW_TIMES = '^(%d+) (%d+) ' -- touchAt and dueAt alone
local FLOW_FORMAT = '%d %d %d %d %d %d %d %d %d'

-- Pattern and format of the field queue of meta: the numbers of the first and the last
-- work item that are not settled, and the bytes of parked callbacks.
local QUEUE_PATTERN = '^(%d+) (%d+) (-?%d+)$'
local QUEUE_FORMAT = '%d %d %d'
