-- telapi channel scripts, version 1
--
-- Every script of a channel is this file followed by its own. It reads what is
-- known of the channel and holds what the scripts share.
--
-- KEYS[1]  meta: a hash, one field per thing known of the channel
-- KEYS[2]  in:   the stream towards the runtime (fields entry, total)
-- KEYS[3]  out:  the history towards the browser (field message)
-- KEYS[4]  seen: message ids of the browser, scored by entry number
-- KEYS[5]  sent: message ids of the runtime, scored by message number
--
-- Ids of both streams are <number>-<ms>: numbers count from 1 without a gap,
-- ms is when it was added. An id never comes twice, not even after a failover
-- that lost the newest ones, since the same number then has another ms.
local META, IN, OUT, SEEN, SENT = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local BASE = string.sub(META, 1, -5)

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local function int(n) return string.format('%.0f', n) end

local channel = {}
do
  local names = { 'state', 'epoch', 'team', 'endpoint', 'owner', 'ownerUntil', 'connections', 'chatOff',
    'claimedBy', 'claimToken', 'claimUntil', 'offeredAt', 'inLast', 'inBytes', 'committed', 'committedBytes',
    'outLast', 'trimmed', 'touchedAt', 'endReason',
    'historyMessages', 'historyMs', 'backlogEntries', 'backlogBytes', 'idleMs', 'keepMs' }
  local values = redis.call('HMGET', META, unpack(names))
  for i, name in ipairs(names) do channel[name] = values[i] or '' end
end

local function set(name, value)
  channel[name] = value
  redis.call('HSET', META, name, value)
end

-- A field, or the first part of an id, as a number.
local function num(value) return tonumber(string.match(value, '^%d+') or '0') end

local function live(milliseconds)
  for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, milliseconds) end
end

-- Puts off the end of an idle channel. Once in a while is enough, except for
-- keys that are new and have no TTL yet.
local function touch(fresh)
  local untouched = now - num(channel.touchedAt)
  if channel.state == 'open' and (fresh or untouched > 60000 or untouched > num(channel.idleMs) / 10) then
    set('touchedAt', int(now))
    live(int(num(channel.idleMs) + num(channel.keepMs)))
  end
end

local function append(entry)
  local number, total = num(channel.inLast) + 1, num(channel.inBytes) + #entry
  local id = int(number) .. '-' .. int(now)
  redis.call('XADD', IN, id, 'entry', entry, 'total', int(total))
  channel.inLast, channel.inBytes = id, int(total)
  redis.call('HSET', META, 'inLast', id, 'inBytes', int(total))
  redis.call('PUBLISH', BASE .. 'up', 'E' .. id)
  touch(number == 1)
end

-- What the runtime has not committed, in parts of what it may leave so.
local function backlog()
  return math.max((num(channel.inLast) - num(channel.committed)) / num(channel.backlogEntries),
    (num(channel.inBytes) - num(channel.committedBytes)) / num(channel.backlogBytes))
end

local function finish(reason)
  redis.call('HSET', META, 'state', 'ended', 'endReason', reason, 'owner', '')
  channel.state, channel.endReason, channel.owner = 'ended', reason, ''
  redis.call('PUBLISH', BASE .. 'down', 'X' .. reason)
  live(channel.keepMs)
end

-- Begins a life of the channel. from is the place of the arguments in ARGV.
local function open(from)
  local names = { 'epoch', 'team', 'endpoint', 'mode', 'callId', 'transactionId', 'profile',
    'historyMessages', 'historyMs', 'backlogEntries', 'backlogBytes', 'idleMs', 'keepMs' }
  for i, name in ipairs(names) do set(name, ARGV[from + i - 1]) end
  set('openedAt', int(now))
  set('state', 'open')
  touch(true)
end

-- Lets go of history that is over its number or its age.
local function trim()
  while true do
    local oldest = redis.call('XRANGE', OUT, '-', '+', 'COUNT', 1)[1]
    if not oldest then return end
    local number, at = string.match(oldest[1], '^(%d+)-(%d+)$')
    if num(channel.outLast) - number < num(channel.historyMessages) and now - at <= num(channel.historyMs) then return end
    redis.call('XDEL', OUT, oldest[1])
    set('trimmed', oldest[1])
  end
end

-- The history from a message number on, as id, message, id, message …
local function history(number)
  local list = {}
  for _, item in ipairs(redis.call('XRANGE', OUT, int(number), '+')) do
    list[#list + 1] = item[1]
    list[#list + 1] = item[2][2]
  end
  return list
end

-- Everything after a position; nothing at all when it is none of this life's,
-- or when something after it is gone.
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

-- Tells once a minute that no runtime has the channel.
local function offer()
  if num(channel.claimUntil) > now or now - num(channel.offeredAt) < 60000 then return 0 end
  set('offeredAt', int(now))
  return 1
end

if channel.state == 'open' and now - num(channel.touchedAt) > num(channel.idleMs) then finish('idle') end
