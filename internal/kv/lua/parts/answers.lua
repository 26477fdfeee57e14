-- Callbacks and streamed answers that are accepted. Needs credentials and offers.

-- Returns the reply for a credential whose callback is accepted. The caller offers an unclaimed
-- session, since there may be no connection that does. It can repeat that: a session has one offer.
local function acceptedReply(c, outcome, receipt)
  local number = outcome == 'parked' and tostring(c.number) or ''
  return { outcome, receipt, number, needsOffer() and channel.offer or '' }
end

-- Returns the entries in ARGV from an index on. If ARGV[3], the work item ID, is empty, it inserts
-- the one of the credential.
local function entriesFrom(first, c)
  local list = { unpack(ARGV, first) }
  if ARGV[3] == '' then
    for i, entry in ipairs(list) do list[i] = '{"workItemId":"' .. c.id .. '",' .. string.sub(entry, 2) end
  end
  return list
end

-- Returns the receipt of a parked callback: deadline, @ and ID of the item that it waits for, a
-- space, and the receipt.
local function parkedReceipt(receipt)
  return (string.match(redis.call('HGET', WORK, head) or '', '^%d+@%S+ ') or '') .. receipt
end
