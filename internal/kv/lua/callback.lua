-- uses: credentials offers answers
-- Accepts a callback: checks and consumes its credential, and adds its entries to
-- the runtime stream, or parks them until earlier work items are settled.
--
-- ARGV[1]  SHA-256 of the credential, in hex
-- ARGV[2]  kind of the callback's route
-- ARGV[3]  work item ID from the path or the credential; empty: neither has one, and the script inserts the one of the
--          credential into every entry
-- ARGV[4]  callback ID
-- ARGV[5]  digest of the body
-- ARGV[6]  ms for which an equal body is a duplicate under a channel credential; empty: it never is
-- ARGV[7]  epoch of the channel when the commands were checked
-- ARGV[8]  receipt
-- ARGV[9]  1: the entries may be parked
-- ARGV[10…] entries, JSON objects with at least one member
-- returns  {outcome, receipt of the first callback, number of the work item if it is parked, the session's offer if the
--          caller should offer it}; missing or empty where there is none. The outcome is routed, parked, invalid, ended,
--          consumed, streaming, duplicate, cancelled, stale, backpressure or not_parked. The receipt of a parked callback
--          starts with the item that it waits for: deadline, @, ID and a space
--
-- Atomic so that only one of several concurrent callbacks with a credential is accepted,
-- and so that a credential is consumed if and only if the entries are stored. If it is
-- called again with the same callback ID, it returns the same result.
local RETRY_WINDOW = 600000 -- ms for which a callback that has no duplicates can be retried

loadChannel('state', 'epoch', 'queue', 'claimUntil', 'offeredAt', 'offer')
local digest, callbackID, bodyDigest, duplicateFor, receipt = ARGV[1], ARGV[4], ARGV[5], tonumber(ARGV[6]), ARGV[8]
local c = credentialFor(digest, ARGV[2], ARGV[3])
if not c then return { 'invalid' } end

-- A channel credential (number 0) is used many times. Each use is recorded in its own
-- field.
local channelScope, field = c.number == 0, digest
if channelScope then
  field = digest .. ' ' .. (duplicateFor and bodyDigest or callbackID)
  local use = redis.call('HGET', WORK, field)
  local id, body, first = string.match(use or '', '^(%S+) (%S*) (.*)$')
  if id and (id == callbackID or now < tonumber(redis.call('ZSCORE', FORGET, field) or 0)) then -- it may not be deleted yet
    c.callbackID, c.bodyDigest, c.receipt = id, body, first
  end
end

if c.callbackID == callbackID then return acceptedReply(c, channelScope and 'routed' or c.state, c.receipt) end
local rejection = credentialRejection(c)
if rejection == 'consumed' then return { c.bodyDigest == bodyDigest and 'duplicate' or 'consumed', c.receipt } end
if rejection then return { rejection } end
if channel.epoch ~= ARGV[7] then return { 'stale' } end
local inTurn = channelScope or c.number == head
if backlog(inTurn and 0 or parked) >= 1 then return { 'backpressure' } end
if not inTurn and ARGV[9] == '' then return { 'not_parked' } end

local list = entriesFrom(10, c)
if channelScope then
  local number = redis.call('HINCRBY', META, 'uses', 1)
  local counter, oldest = '#' .. number, '#' .. number - MAX_USES
  local oldestField = redis.call('HGET', WORK, oldest)
  if oldestField then
    -- If the same body was used again later, the field belongs to that use and has another time.
    local ownsField = redis.call('ZSCORE', FORGET, oldest) == redis.call('ZSCORE', FORGET, oldestField)
    local evicted = { oldest, ownsField and oldestField or nil }
    redis.call('HDEL', WORK, unpack(evicted))
    redis.call('ZREM', FORGET, unpack(evicted))
  end
  local forgetAt = math.min(c.deadline, now + (duplicateFor or RETRY_WINDOW))
  redis.call('HSET', WORK, field, callbackID .. ' ' .. bodyDigest .. ' ' .. receipt, counter, field)
  redis.call('ZADD', FORGET, forgetAt, field, forgetAt, counter)
  forgetExpired()
else
  if not inTurn then receipt = parkedReceipt(receipt) end
  c.state, c.callbackID, c.bodyDigest, c.receipt = inTurn and 'routed' or 'parked', callbackID, bodyDigest, receipt
  redis.call('HSET', WORK, digest, formatCredential(c))
end
if not inTurn then
  local packed = packEntries(list)
  parked = parked + #packed
  redis.call('HSET', WORK, c.number, '0 ' .. packed)
  keepAlive()
  save()
  return acceptedReply(c, 'parked', receipt)
end
for _, entry in ipairs(list) do addEntry(entry) end
if not channelScope then
  redis.call('HDEL', WORK, c.number)
  head = head + 1
  advanceQueue()
end
saveAndNotify()
return acceptedReply(c, 'routed', receipt)
