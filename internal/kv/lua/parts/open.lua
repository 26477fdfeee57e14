-- Opening a channel, and the order of requests.

local CLOCK_ERROR = 100 -- ms by which two callers' estimates of the store's clock may differ
local NO_UUID = '-9223372036854775808' -- the member of an empty set of UUIDs

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

-- Returns whether a request for the ownership or a claim is older than the one that was
-- granted last. grantedAt is when that one was requested. It is ignored if the store's
-- clock was set back since.
local function isOutdated(requestedAt, grantedAt)
  return requestedAt ~= '' and toNumber(grantedAt) <= now and toNumber(requestedAt) + CLOCK_ERROR < toNumber(grantedAt)
end
