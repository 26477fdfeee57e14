-- uses: credentials
-- Cancels an unsettled work item, or a channel credential.
--
-- ARGV[1]  token of the claim; empty: act for the runtime that has the claim
-- ARGV[2]  work item ID
-- returns  'cancelled', also if it was cancelled before; 'no_item' if the work item is unknown, timed out, or its
--          result is on the stream; 'ended', 'not_found', 'lost' or 'claim_lost'
--
-- Atomic so that a work item is either cancelled or answered. The callback of a parked
-- work item is dropped. Callbacks that were only waiting for this work item are routed. The
-- parts of a streamed answer that are on the stream stay there; no more follow, and the instance that
-- receives the answer is notified.
runWhenFull()
loadChannel('state', 'claimToken', 'queue')
local rejection = claimRejection(ARGV[1])
if rejection then return rejection end
local digest = redis.call('HGET', WORK, '@' .. ARGV[2])
local item = digest and findCredential(digest)
if not item then return 'no_item' end
local state, number = item.state, item.number
if state == 'cancelled' then return 'cancelled' end
if channel.state == 'ended' then return 'ended' end
readQueue()
if state == 'routed' or state ~= 'parked' and now >= item.deadline or number > 0 and number < head then return 'no_item' end

item.state = 'cancelled'
redis.call('HSET', WORK, digest, formatCredential(item))
if number > 0 then
  takeParts(number)
  local stored = string.gsub(redis.call('HGET', WORK, number), '^%+', '')
  if state == 'parked' then parked = parked - (#stored - #'0 ') end
  redis.call('HSET', WORK, number, '0 ')
  advanceQueue()
end
saveAndNotify()
redis.call('PUBLISH', STREAMS, string.match(META, '{(.+)}') .. ' ' .. item.id)
return 'cancelled'
