-- uses: credentials offers answers
-- Accepts parts of a streamed answer, or its end: adds their entries to the runtime stream, or
-- parks them until earlier work items are settled. The first part takes the credential, the
-- last line settles the work item.
--
-- ARGV[1]  SHA-256 of the credential, in hex
-- ARGV[2]  kind of the callback's route
-- ARGV[3]  work item ID from the path or the credential; empty: neither has it, so it is inserted into every entry
-- ARGV[4]  callback ID
-- ARGV[5]  +, the digests of all parts so far and, with the last line, a dot and its digest
-- ARGV[6]  epoch of the channel
-- ARGV[7]  1: the entries may be parked
-- ARGV[8]  receipt; empty before the last line
-- ARGV[9]  number of parts in this call, which are the newest ones
-- ARGV[10…] entries of these parts, then those of the last line
-- returns  the same as callback.lua; also missing, if the store has lost parts that it had accepted
--
-- Atomic so that every part is added once and in order. Parts that are there already are
-- compared and skipped: a provider repeats a broken stream from its start, on any instance,
-- even while another one still reads the broken one.
local DIGEST_LENGTH = 8

loadChannel('state', 'epoch', 'queue', 'claimUntil', 'offeredAt', 'offer')
local digest, callbackID, digests, receipt, parts = ARGV[1], ARGV[4], ARGV[5], ARGV[8], tonumber(ARGV[9])
local c = credentialFor(digest, ARGV[2], ARGV[3])
if not c or c.number == 0 then return { 'invalid' } end

local last = receipt ~= ''
local rejection = credentialRejection(c)
if rejection == 'consumed' then -- the answer is settled
  if last and c.callbackID == callbackID then return acceptedReply(c, c.state, c.receipt) end
  if last and c.bodyDigest == digests then return { 'duplicate', c.receipt } end
  local repeated = not last and string.sub(c.bodyDigest, 1, #digests) == digests
  return { repeated and 'routed' or 'consumed' }
end
if rejection and rejection ~= 'streaming' then return { rejection } end
if channel.epoch ~= ARGV[6] then return { 'stale' } end

local known, sent = rejection and c.bodyDigest or '+', string.match(digests, '^[^.]+')
local common = math.min(#known, #sent)
if string.sub(known, 1, common) ~= string.sub(sent, 1, common) or last and #sent < #known then return { 'consumed' } end
local before, count = (#known - 1) / DIGEST_LENGTH, (#sent - 1) / DIGEST_LENGTH
if count - parts > before then return { 'missing' } end
if count <= before and not last then return { 'routed' } end
local inTurn = c.number == head
if backlog(inTurn and 0 or parked) >= 1 then return { 'backpressure' } end
if not inTurn and ARGV[7] == '' then return { 'not_parked' } end

local list = entriesFrom(10, c)
for part = before + 1, count do
  local entry = list[parts - count + part]
  if inTurn then
    addEntry(entry)
  else
    redis.call('HSET', WORK, string.format('%d+%d', c.number, part), entry)
    parked = parked + #entry
  end
end
if last and not inTurn then receipt = parkedReceipt(receipt) end
local outcome = inTurn and 'routed' or 'parked'
c.state, c.callbackID, c.bodyDigest, c.receipt = last and outcome or 'streaming', callbackID, digests, receipt
redis.call('HSET', WORK, digest, formatCredential(c))
if not inTurn then
  local item = redis.call('HGET', WORK, c.number)
  if last then
    local packed = packEntries({ unpack(list, parts + 1) })
    parked = parked + #packed
    item = '0 ' .. packed
  end
  if count > 0 and string.sub(item, 1, 1) ~= '+' then item = '+' .. item end
  redis.call('HSET', WORK, c.number, item)
  keepAlive()
  save()
  return acceptedReply(c, 'parked', receipt)
end
if last then
  for i = parts + 1, #list do addEntry(list[i]) end
  redis.call('HDEL', WORK, c.number)
  head = head + 1
  advanceQueue()
end
saveAndNotify()
return acceptedReply(c, 'routed', receipt)
