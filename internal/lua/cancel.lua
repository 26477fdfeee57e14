-- Cancels a work item that is not settled, or a credential of the channel.
--
-- ARGV[1]  the claim's token; empty: on behalf of whoever has the claim
-- ARGV[2]  the work item's id
-- returns  'cancelled', also when it was before; 'no_item' if there is none, its answer is on the stream already, or it is over its time;
--          'ended', 'lost' or 'claim_lost'
--
-- Atomic so that an item is either cancelled or answered. An answer that waits
-- for its turn is dropped; what waits for the item has its turn now.
load('state', 'claimToken', 'queue')
if channel.state == '' then return 'lost' end
if ARGV[1] ~= '' and channel.claimToken ~= ARGV[1] then return 'claim_lost' end
local digest = redis.call('HGET', WORK, '@' .. ARGV[2])
local item = digest and credential(digest)
if not item then return 'no_item' end
local state, number, deadline = item[1], tonumber(item[2]), tonumber(item[4])
if state == 'cancelled' then return 'cancelled' end
if channel.state == 'ended' then return 'ended' end
queue()
if state == 'routed' or state == 'awaiting' and now >= deadline or number > 0 and number < head then return 'no_item' end

item[1] = 'cancelled'
redis.call('HSET', WORK, digest, table.concat(item, ' '))
if number > 0 then
  if state == 'parked' then
    local waiting = redis.call('HGET', WORK, number)
    parked = parked - (#waiting - 2)
  end
  redis.call('HSET', WORK, number, '0 ')
  advance()
end
announce()
return 'cancelled'
