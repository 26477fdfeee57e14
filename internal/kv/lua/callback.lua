-- Callbacks and streamed answers: the results of work items.

local MAX_USES     = 1024   -- of channel credentials that are remembered
local RETRY_WINDOW = 600000 -- ms for which a callback that has no duplicates can be retried
local PART_DIGEST  = 8      -- length of the digest of a part

-- Reads the channel and the credential of a callback. Returns nil if the credential is invalid.
local function loadCredential(digest, kind, workItemID)
  loadChannel('state', 'epoch', 'queue', 'claimUntil', 'offeredAt', 'offer', digest)
  return findCredential(digest, kind, workItemID)
end

-- Returns the reply for a credential whose callback is accepted; receipt is that of a new callback. The caller offers
-- an unclaimed session, since there may be no connection that does. It can repeat that: a session has one offer.
local function acceptedReply(c, outcome, receipt)
  local first = c.receipt ~= '' and c.receipt or receipt -- a channel whose end is committed has no receipts
  local number = outcome == 'parked' and tostring(c.number) or ''
  return { outcome, first, number, needsOffer() and channel.offer or '' }
end

-- Returns the entries from ARGV[10] on. If workItemID is empty, it inserts the one of the credential.
local function entriesFor(c, workItemID)
  local list = { unpack(ARGV, 10) }
  if workItemID == '' then
    for i, entry in ipairs(list) do list[i] = '{"workItemId":"' .. c.id .. '",' .. string.sub(entry, 2) end
  end
  return list
end

-- Returns why new entries are rejected, or nil if they are not.
local function entriesRejection(inTurn, mayPark)
  if backlog(inTurn and 0 or parked) >= 1 then return 'backpressure' end
  if not inTurn and mayPark == '' then return 'not_parked' end
end

-- Settles a work item: adds the last entries of its result, or parks them.
local function settle(c, digest, receipt, list, hasParts)
  local inTurn, fields = c.number == head, {}
  if inTurn then
    for _, entry in ipairs(list) do addEntry(entry) end
    redis.call('HDEL', META, string.format('%d', head)) -- Redis is slow to format a number
    head = head + 1
    if head <= tail then advanceQueue() else dueAt = NEVER end
  else
    receipt = (string.match(redis.call('HGET', META, head) or '', '^%d+@%S+ ') or '') .. receipt -- what it waits for
    local packed = packEntries(list)
    parked = parked + #packed
    append(fields, c.number, (hasParts and '+0 ' or '0 ') .. packed)
  end
  c.state, c.receipt = inTurn and 'routed' or 'parked', receipt
  append(fields, digest, formatCredential(c))
  saveAndNotify(unpack(fields))
  return acceptedReply(c, c.state, receipt)
end

-- Returns whether a use of a channel credential, the value of its field, is forgotten. Needs uses.
local function isUseForgotten(use) -- rare
  local number, forgetAt = string.match(use, '^(%d+) (%d+) ')
  return now >= tonumber(forgetAt) or tonumber(number) <= toNumber(channel.uses) - MAX_USES
end

-- Returns callback ID, body digest and receipt of the use of a channel credential in a field, or nil.
local function findUse(field, callbackID) -- rare
  readFields(field, 'uses')
  local use = channel[field]
  local id, body, receipt = string.match(use, '^%d+ %d+ (%S+) (%S*) (.*)$')
  if id and (id == callbackID or not isUseForgotten(use)) then return id, body, receipt end
end

local function recordUse(field, use, forgetAt) -- rare
  local number = toNumber(channel.uses) + 1
  redis.call('HSET', META, 'uses', number, field, string.format('%d %d %s', number, forgetAt, use))
  forgetEvery(number, 1)
end

-- Checks a credential without consuming it. It changes nothing.
--
-- returns  {outcome, ms until it is invalid, number of the work item or 0 for a channel credential}. The outcome is usable,
--          streaming if a streamed answer has begun, or why a callback would be rejected: invalid, ended, cancelled or
--          consumed. invalid stands alone
function check_credential(digest, kind, workItemID)
  inspect('queue', digest)
  local c = findCredential(digest, kind, workItemID)
  if not c then return { 'invalid' } end
  return { credentialRejection(c) or 'usable', tostring(c.expiresAt - now), tostring(c.number) }
end

-- Accepts a callback: consumes its credential, and adds its entries to the runtime stream, or parks them until earlier
-- work items are settled.
--
-- bodyDigest    digest of the body
-- duplicateFor  ms for which an equal body is a duplicate under a channel credential; empty: it never is
-- receipt       to return
-- mayPark       the entries may be parked
-- ARGV[10…]     entries, JSON objects with at least one member
-- returns  {outcome, receipt of the first callback, number of the work item if it is parked, the session's offer if the
--          caller should offer it}; missing or empty where there is none. The outcome is routed, parked, invalid, ended,
--          consumed, streaming, duplicate, cancelled, stale, backpressure or not_parked. The receipt of a parked callback
--          starts with the item that it waits for: deadline, @, ID and a space
--
-- Atomic so that only one of several concurrent callbacks with a credential is accepted, and so that a credential is
-- consumed if and only if the entries are stored. If it is called again with the same callback ID, it returns the same.
function callback(digest, kind, workItemID, callbackID, bodyDigest, duplicateFor, epoch, receipt, mayPark)
  local c = loadCredential(digest, kind, workItemID)
  if not c then return { 'invalid' } end
  local channelScope, useField = c.number == 0, digest .. ' ' .. (duplicateFor == '' and callbackID or bodyDigest)
  if channelScope then
    local id, body, first = findUse(useField, callbackID)
    if id then c.callbackID, c.bodyDigest, c.receipt = id, body, first end
  end

  if c.callbackID == callbackID then return acceptedReply(c, channelScope and 'routed' or c.state, receipt) end
  local rejection = credentialRejection(c)
  if rejection == 'consumed' then return { c.bodyDigest == bodyDigest and 'duplicate' or 'consumed', c.receipt } end
  if rejection then return { rejection } end
  if channel.epoch ~= epoch then return { 'stale' } end
  rejection = entriesRejection(channelScope or c.number == head, mayPark)
  if rejection then return { rejection } end

  local list = entriesFor(c, workItemID)
  if not channelScope then
    c.callbackID, c.bodyDigest = callbackID, bodyDigest
    return settle(c, digest, receipt, list)
  end
  for _, entry in ipairs(list) do addEntry(entry) end
  local forgetAt = math.min(c.deadline, now + (tonumber(duplicateFor) or RETRY_WINDOW))
  saveAndNotify()
  recordUse(useField, callbackID .. ' ' .. bodyDigest .. ' ' .. receipt, forgetAt)
  return acceptedReply(c, 'routed', receipt)
end

-- Checks that the store has a callback that it accepted, and reports the loss otherwise.
--
-- use      its name, under a channel credential
-- returns  'kept', or 'lost' if the work item waits for its callback again, has timed out without it, or is lost too
--
-- Atomic so that a loss is reported once: it starts a new epoch. An earlier epoch of the channel means that the report
-- of another loss is lost too.
function check_callback(digest, epoch, use)
  runWhenFull()
  loadChannel('state', 'epoch', 'uses', 'queue')
  if channel.state ~= 'open' or isLaterEpoch(channel.epoch, epoch) then return 'kept' end
  local c = findCredential(digest)
  local kept = c and not c.open or not c and head > MAX_SETTLED -- it may be forgotten
  if c and c.number == 0 then
    local mayBeForgotten = now >= c.deadline or toNumber(channel.uses) >= MAX_USES
    kept = mayBeForgotten or redis.call('HEXISTS', META, digest .. ' ' .. use) == 1
  end
  if kept then return 'kept' end
  reportLoss()
  return 'lost'
end

-- Accepts parts of a streamed answer, or its end. The first part takes the credential, the last line settles the work item.
--
-- digests    +, the digests of all parts so far and, with the last line, a dot and its digest
-- mayPark    the entries may be parked
-- receipt    to return; empty before the last line
-- parts      number of parts in this call, which are the newest ones
-- ARGV[10…]  entries of these parts, then those of the last line
-- returns  the same as callback; also missing, if the store has lost parts that it had accepted
--
-- Atomic so that every part is added once and in order. Parts that are there already are compared and skipped: a provider
-- repeats a broken stream from its start, on any instance, even while another one still reads the broken one.
function stream(digest, kind, workItemID, callbackID, digests, epoch, mayPark, receipt, parts)
  local c = loadCredential(digest, kind, workItemID)
  if not c or c.number == 0 then return { 'invalid' } end
  local isLast, settled = receipt ~= '', c.state == 'routed' or c.state == 'parked'
  if isLast and settled and c.callbackID == callbackID then return acceptedReply(c, c.state, receipt) end
  local rejection = credentialRejection(c)
  if rejection == 'consumed' then -- the answer is settled
    if c.bodyDigest == digests then return { 'duplicate', c.receipt } end
    local repeated = not isLast and string.sub(c.bodyDigest, 1, #digests) == digests
    return { repeated and 'routed' or 'consumed' }
  end
  if rejection and rejection ~= 'streaming' then return { rejection } end
  if channel.epoch ~= epoch then return { 'stale' } end

  local known, sent = rejection and c.bodyDigest or '+', string.match(digests, '^[^.]+')
  local common = math.min(#known, #sent)
  if string.sub(known, 1, common) ~= string.sub(sent, 1, common) or isLast and #sent < #known then return { 'streaming' } end
  local before, count = (#known - 1) / PART_DIGEST, (#sent - 1) / PART_DIGEST
  if count - parts > before then return { 'missing' } end
  if count <= before and not isLast then return { 'routed' } end
  local inTurn = c.number == head
  rejection = entriesRejection(inTurn, mayPark)
  if rejection then return { rejection } end

  local list = entriesFor(c, workItemID)
  for part = before + 1, count do
    local entry = list[parts - count + part]
    if inTurn then
      addEntry(entry)
    else
      redis.call('HSET', META, string.format('%d+%d', c.number, part), entry) -- unpack cannot return all parts in the embedded store
      parked = parked + #entry
    end
  end
  c.callbackID, c.bodyDigest = callbackID, digests
  if isLast then return settle(c, digest, receipt, { unpack(list, parts + 1) }, count > 0) end
  c.state = 'streaming'
  local fields = { digest, formatCredential(c) }
  local item = not inTurn and redis.call('HGET', META, c.number)
  if item and string.sub(item, 1, 1) ~= '+' then append(fields, c.number, '+' .. item) end
  saveAndNotify(unpack(fields))
  return acceptedReply(c, inTurn and 'routed' or 'parked', receipt)
end
