-- uses: credentials loss
-- Checks that the store has a callback that it accepted, and reports the loss otherwise.
--
-- ARGV[1]  SHA-256 of the credential, in hex
-- ARGV[2]  epoch of the channel when the callback was accepted
-- ARGV[3]  name of the use, under a channel credential
-- returns  'kept', or 'lost' if the work item waits for its callback again, has timed out without it, or is lost too
--
-- Atomic so that a loss is reported once: it starts a new epoch. An earlier epoch than ARGV[2]
-- means that the report of another loss is lost too.
runWhenFull()
loadChannel('state', 'epoch', 'uses')
if channel.state ~= 'open' or isLaterEpoch(channel.epoch, ARGV[2]) then return 'kept' end
local c = findCredential(ARGV[1])
if c and c.number == 0 then
  local mayBeForgotten = now >= c.deadline or toNumber(channel.uses) >= MAX_USES
  if mayBeForgotten or redis.call('HEXISTS', WORK, ARGV[1] .. ' ' .. ARGV[3]) == 1 then return 'kept' end
elseif c and c.state ~= 'awaiting' and c.state ~= 'streaming' then
  return 'kept'
end
reportLoss()
return 'lost'
