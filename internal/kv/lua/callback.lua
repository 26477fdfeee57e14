-- Callbacks and streamed answers: the results of work items.

local MAX_USES      = 1024   -- of channel credentials that are remembered
local RETRY_WINDOW  = 600000 -- ms for which a callback that has no duplicates can be retried
local PART_DIGEST   = 8      -- length of the digest of a part

-- Returns the reply for a credential whose callback is accepted. The caller offers an unclaimed
-- session, since there may be no connection that does. It can repeat that: a session has one offer.
local function acceptedReply(c, outcome, receipt)
  local number = outcome == 'parked' and tostring(c.number) or ''
  return { outcome, receipt, number, needsOffer() and channel.offer or '' }
end

-- Returns the receipt of an accepted callback that is repeated. A channel whose end is committed has no receipts.
local function receiptOf(c, receipt) return c.receipt ~= '' and c.receipt or receipt end

-- Returns the entries from ARGV[10] on. If workItemID is empty, it inserts the one of the credential.
local function entriesFor(c, workItemID)
  local list = { unpack(ARGV, 10) }
  if workItemID == '' then
    for i, entry in ipairs(list) do list[i] = '{"workItemId":"' .. c.id .. '",' .. string.sub(entry, 2) end
  end
  return list
end

-- Returns the receipt of a parked callback: deadline, @ and ID of the item that it waits for, a
-- space, and the receipt.
local function parkedReceipt(receipt) -- rare
  return (string.match(redis.call('HGET', META, head) or '', '^%d+@%S+ ') or '') .. receipt
end

-- Settles the first work item after its entries were added.
local function settleFirst()
  redis.call('HDEL', META, string.format('%d', head)) -- Redis is slow to format a number
  head = head + 1
  if head <= tail then advanceQueue() else dueAt = NEVER end
end

-- Returns whether a use of a channel credential, the value of its field, is forgotten. Needs uses.
local function isUseForgotten(use) -- rare
  local number, forgetAt = string.match(use, '^(%d+) (%d+) ')
  return now >= tonumber(forgetAt) or tonumber(number) <= toNumber(channel.uses) - MAX_USES
end

-- A channel credential is used many times. Each use is recorded in a field of its own. Returns callback ID, body digest and
-- receipt of the use in a field, or nil.
local function findUse(field, callbackID) -- rare
  readFields(field, 'uses')
  local use = channel[field]
  local id, body, receipt = string.match(use, '^%d+ %d+ (%S+) (%S*) (.*)$')
  if id and (id == callbackID or not isUseForgotten(use)) then return id, body, receipt end
end

-- Records a use of a channel credential.
local function recordUse(field, use, forgetAt) -- rare
  local number = toNumber(channel.uses) + 1
  redis.call('HSET', META, 'uses', number, field, string.format('%d %d %s', number, forgetAt, use))
  forgetEvery(number, 1)
end

-- Checks a credential without consuming it. It changes nothing.
--
-- digest      SHA-256 of the credential, in hex
-- kind        of the callback's route
-- workItemID  from the path; empty: the path has none
-- returns  {outcome, ms until it is invalid, number of the work item or 0 for a channel credential}. The outcome is usable,
--          streaming if a streamed answer has begun, or why a callback would be rejected: invalid, ended, cancelled or
--          consumed. invalid stands alone
function check_credential(digest, kind, workItemID)
  inspect('queue', digest)
  local c = channel.flow ~= '' and findCredential(digest, kind, workItemID)
  if not c then return { 'invalid' } end
  return { credentialRejection(c) or 'usable', tostring(c.expiresAt - now), tostring(c.number) }
end

-- Accepts a callback: checks and consumes its credential, and adds its entries to
-- the runtime stream, or parks them until earlier work items are settled.
--
-- digest        SHA-256 of the credential, in hex
-- kind          of the callback's route
-- workItemID    from the path or the credential; empty: neither has one, and the script inserts the one of the
--               credential into every entry
-- callbackID    its ID
-- bodyDigest    digest of the body
-- duplicateFor  ms for which an equal body is a duplicate under a channel credential; empty: it never is
-- epoch         of the channel when the commands were checked
-- receipt       to return
-- mayPark       1: the entries may be parked
-- ARGV[10…]     entries, JSON objects with at least one member
-- returns  {outcome, receipt of the first callback, number of the work item if it is parked, the session's offer if the
--          caller should offer it}; missing or empty where there is none. The outcome is routed, parked, invalid, ended,
--          consumed, streaming, duplicate, cancelled, stale, backpressure or not_parked. The receipt of a parked callback
--          starts with the item that it waits for: deadline, @, ID and a space
--
-- Atomic so that only one of several concurrent callbacks with a credential is accepted,
-- and so that a credential is consumed if and only if the entries are stored. If it is
-- called again with the same callback ID, it returns the same result.
function callback(digest, kind, workItemID, callbackID, bodyDigest, duplicateFor, epoch, receipt, mayPark)
  loadChannel('state', 'epoch', 'queue', 'claimUntil', 'offeredAt', 'offer', digest)
  local c = channel.flow ~= '' and findCredential(digest, kind, workItemID)
  if not c then return { 'invalid' } end
  local channelScope = c.number == 0
  local field = channelScope and digest .. ' ' .. (duplicateFor == '' and callbackID or bodyDigest) -- of this use
  if channelScope then
    local id, body, first = findUse(field, callbackID)
    if id then c.callbackID, c.bodyDigest, c.receipt = id, body, first end
  end

  if c.callbackID == callbackID then return acceptedReply(c, channelScope and 'routed' or c.state, receiptOf(c, receipt)) end
  local rejection = credentialRejection(c)
  if rejection == 'consumed' then return { c.bodyDigest == bodyDigest and 'duplicate' or 'consumed', c.receipt } end
  if rejection then return { rejection } end
  if channel.epoch ~= epoch then return { 'stale' } end
  local inTurn = channelScope or c.number == head
  if backlog(inTurn and 0 or parked) >= 1 then return { 'backpressure' } end
  if not inTurn and mayPark == '' then return { 'not_parked' } end

  local list = entriesFor(c, workItemID)
  if inTurn then
    for _, entry in ipairs(list) do addEntry(entry) end
  end
  if channelScope then
    local forgetAt = math.min(c.deadline, now + (tonumber(duplicateFor) or RETRY_WINDOW))
    recordUse(field, callbackID .. ' ' .. bodyDigest .. ' ' .. receipt, forgetAt)
    saveAndNotify()
    return acceptedReply(c, 'routed', receipt)
  end
  if not inTurn then receipt = parkedReceipt(receipt) end
  c.state, c.callbackID, c.bodyDigest, c.receipt = inTurn and 'routed' or 'parked', callbackID, bodyDigest, receipt
  local fields = { digest, formatCredential(c) }
  if inTurn then
    settleFirst()
  else
    local packed = packEntries(list)
    parked = parked + #packed
    append(fields, c.number, '0 ' .. packed)
  end
  saveAndNotify(unpack(fields))
  return acceptedReply(c, c.state, receipt)
end

-- Checks that the store has a callback that it accepted, and reports the loss otherwise.
--
-- digest   SHA-256 of the credential, in hex
-- epoch    of the channel when the callback was accepted
-- use      its name, under a channel credential
-- returns  'kept', or 'lost' if the work item waits for its callback again, has timed out without it, or is lost too
--
-- Atomic so that a loss is reported once: it starts a new epoch. An earlier epoch of the channel
-- means that the report of another loss is lost too.
function check_callback(digest, epoch, use)
  runWhenFull()
  loadChannel('state', 'epoch', 'uses')
  if channel.state ~= 'open' or isLaterEpoch(channel.epoch, epoch) then return 'kept' end
  local c = findCredential(digest)
  if c and c.number == 0 then
    local mayBeForgotten = now >= c.deadline or toNumber(channel.uses) >= MAX_USES
    if mayBeForgotten or redis.call('HEXISTS', META, digest .. ' ' .. use) == 1 then return 'kept' end
  elseif c and not c.open then
    return 'kept'
  end
  reportLoss()
  return 'lost'
end

-- Accepts parts of a streamed answer, or its end: adds their entries to the runtime stream, or
-- parks them until earlier work items are settled. The first part takes the credential, the
-- last line settles the work item.
--
-- digest      SHA-256 of the credential, in hex
-- kind        of the callback's route
-- workItemID  from the path or the credential; empty: neither has it, so it is inserted into every entry
-- callbackID  its ID
-- digests     +, the digests of all parts so far and, with the last line, a dot and its digest
-- epoch       of the channel
-- mayPark     1: the entries may be parked
-- receipt     empty before the last line
-- parts       number of parts in this call, which are the newest ones
-- ARGV[10…]   entries of these parts, then those of the last line
-- returns  the same as callback; also missing, if the store has lost parts that it had accepted
--
-- Atomic so that every part is added once and in order. Parts that are there already are
-- compared and skipped: a provider repeats a broken stream from its start, on any instance,
-- even while another one still reads the broken one.
function stream(digest, kind, workItemID, callbackID, digests, epoch, mayPark, receipt, parts)
  loadChannel('state', 'epoch', 'queue', 'claimUntil', 'offeredAt', 'offer', digest)
  local c = channel.flow ~= '' and findCredential(digest, kind, workItemID)
  if not c or c.number == 0 then return { 'invalid' } end

  local last = receipt ~= ''
  local settled = c.state == 'routed' or c.state == 'parked'
  if last and settled and c.callbackID == callbackID then return acceptedReply(c, c.state, receiptOf(c, receipt)) end
  local rejection = credentialRejection(c)
  if rejection == 'consumed' then -- the answer is settled
    if last and c.bodyDigest == digests then return { 'duplicate', c.receipt } end
    local repeated = not last and string.sub(c.bodyDigest, 1, #digests) == digests
    return { repeated and 'routed' or 'consumed' }
  end
  if rejection and rejection ~= 'streaming' then return { rejection } end
  if channel.epoch ~= epoch then return { 'stale' } end

  local known, sent = rejection and c.bodyDigest or '+', string.match(digests, '^[^.]+')
  local common = math.min(#known, #sent)
  if string.sub(known, 1, common) ~= string.sub(sent, 1, common) or last and #sent < #known then return { 'consumed' } end
  local before, count = (#known - 1) / PART_DIGEST, (#sent - 1) / PART_DIGEST
  if count - parts > before then return { 'missing' } end
  if count <= before and not last then return { 'routed' } end
  local inTurn = c.number == head
  if backlog(inTurn and 0 or parked) >= 1 then return { 'backpressure' } end
  if not inTurn and mayPark == '' then return { 'not_parked' } end

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
  if last and not inTurn then receipt = parkedReceipt(receipt) end
  c.state, c.callbackID, c.bodyDigest, c.receipt = last and (inTurn and 'routed' or 'parked') or 'streaming', callbackID, digests, receipt
  local fields = { digest, formatCredential(c) }
  if not inTurn then
    local item = redis.call('HGET', META, c.number)
    if last then
      local packed = packEntries({ unpack(list, parts + 1) })
      parked = parked + #packed
      item = '0 ' .. packed
    end
    if count > 0 and string.sub(item, 1, 1) ~= '+' then item = '+' .. item end
    append(fields, c.number, item)
  elseif last then
    for i = parts + 1, #list do addEntry(list[i]) end
    settleFirst()
  end
  saveAndNotify(unpack(fields))
  return acceptedReply(c, inTurn and 'routed' or 'parked', receipt)
end
