-- uses: open loss trim history
-- Claims a channel for a runtime, opening it if requested, or renews a claim.
--
-- ARGV[1]  name of the runtime
-- ARGV[2]  token of the claim, a new one for every claim
-- ARGV[3]  lease in ms; 0 releases the claim
-- ARGV[4]  action: open, attach, accept, resume, recover (attach after the store has lost data) or renew
-- ARGV[5]  when the claim was requested, in Unix ms of the store's clock; empty: now
-- ARGV[6…] of the action:
--          open     epoch, team, endpoint, mode, call ID, transaction ID, profile, and the limits: history messages,
--                   history ms, backlog entries, backlog bytes, idle ms, keep ms
--          renew    IDs of the newest message that send.lua returned, of the newest work item that is awaited and not
--                   expired, and of the entry that was received last; all may be empty; epoch of the claim; 1 if
--                   replicas may not have had the entry
--          resume   ID of the newest entry that was received under the claim, team of the runtime; both may be empty;
--                   1 as for renew
--          recover  token of the claim that lost data
-- returns  {'claimed', epoch, team, endpoint, mode, call ID, transaction ID, profile, committed position,
--          Unix ms of the last loss of data, offer of the session, ms until the next work item times out,
--          ID of the newest entry, 1 if the entry of resume is lost, ID of the newest visible message,
--          ID of the newest message if it is held back};
--          empty where there is none; or
--          {'not_found'}   the channel does not exist
--          {'lost'}        the store has lost data that the runtime relies on
--          {'ended'}       the channel has ended: it cannot be opened, and not be claimed once all its entries are committed
--          {'foreign'}     the channel belongs to another team or endpoint
--          {'taken'}       another runtime has the claim, or a later request of this one
--          {'claim_lost'}  the claim to renew, resume or recover is lost
--
-- Atomic so that only one of two runtimes gets the channel.
--
-- With open, attach, resume and recover, a restarted runtime takes over the claim under its
-- name. With accept it does not, because a session can be offered twice. Of two claims under
-- one name the one that was requested later wins, even if the other arrives later. An ended
-- channel can be claimed, so that the runtime receives all entries acknowledged before the end.
if ARGV[4] ~= 'open' or redis.call('EXISTS', META) == 1 then runWhenFull() end
loadChannel('state', 'team', 'endpoint', 'claimedBy', 'claimToken', 'claimUntil', 'claimRequestedAt', 'epoch', 'outLast', 'trimmed', 'held', 'lostToken')
local action, requestedAt, lost = ARGV[4], ARGV[5], ''
local newestToken = channel.claimToken ~= '' and channel.claimToken or channel.lostToken
if channel.state == '' and action == 'open' then
  openChannel(6)
  createKeys()
elseif channel.state == '' then
  return { action == 'renew' and 'lost' or 'not_found' }
elseif action == 'open' and (channel.team ~= ARGV[7] or channel.endpoint ~= ARGV[8]) then
  return { 'foreign' }
elseif channel.state == 'ended' and action ~= 'renew' and (action == 'open' or committed == entries) then
  return { 'ended' }
elseif action == 'resume' and (channel.claimedBy ~= ARGV[1] or ARGV[7] ~= '' and channel.team ~= ARGV[7]) then
  return { 'claim_lost' }
elseif action == 'recover' and newestToken ~= '' and newestToken ~= ARGV[6] and newestToken ~= ARGV[2] then -- a later connection of the runtime has it
  return { 'claim_lost' }
end
if action == 'renew' then
  local rejection = claimRejection(ARGV[2]) or channel.claimedBy ~= ARGV[1] and 'claim_lost' or nil -- it was released
  -- A runtime that has lost its claim may be the only one that knows of a loss, unless one was
  -- reported since. Its work items may be settled.
  local mayReport = not rejection or rejection == 'claim_lost' and not isLaterEpoch(channel.epoch, ARGV[9])
  local isOpen = channel.state == 'open' -- an ended channel needs its entries only
  local entryLost = isLost(IN, ARGV[8], lastEntryID(), committed)
  if mayReport and (isOpen and isLost(OUT, ARGV[6], channel.outLast, toNumber(channel.trimmed))
    or isOpen and not rejection and isItemLost(ARGV[7]) or entryLost and ARGV[10] ~= '1') then
    reportLoss()
    rejection = rejection or 'lost'
  elseif entryLost and not rejection then -- it was not acknowledged, so its sender repeats it
    reportLossToRuntime()
    rejection = 'lost'
  end
  if rejection then return { rejection } end
elseif channel.claimedBy ~= '' -- the clock may have been set back after a release
  and toNumber(channel.claimUntil) > now and channel.claimToken ~= ARGV[2]
  and (action == 'accept' or channel.claimedBy ~= ARGV[1] or isOutdated(requestedAt, channel.claimRequestedAt)) then
  return { 'taken' }
else
  setField('claimRequestedAt', requestedAt == '' and now or math.min(now, requestedAt))
  if action == 'resume' and isLost(IN, ARGV[6], lastEntryID(), committed) then
    if ARGV[8] == '1' then reportLossToRuntime() else reportLoss() end
    lost = '1'
  end
  if action == 'recover' then setField('lostAt', now) end -- another one for every loss
  redis.call('PUBLISH', PREFIX .. 'up', 'C' .. ARGV[2]) -- the former holder checks its claim
end
if action == 'renew' then showMessages(ARGV[6]) end -- confirm.lua may have failed
local released = tonumber(ARGV[3]) == 0
redis.call('HSET', META, 'claimedBy', released and '' or ARGV[1], 'claimToken', ARGV[2], 'claimUntil', now + ARGV[3], 'offeredAt', '')
if released then requestRenewal() end -- so that the session is offered at once
if keepAlive() then save() end
local reply = redis.call('HMGET', META, 'epoch', 'team', 'endpoint', 'mode', 'callId', 'transactionId', 'profile', 'committed', 'lostAt', 'offer')
for i = 1, 10 do reply[i] = reply[i] or '' end
reply[11] = dueAt < NEVER and string.format('%d', dueAt - now) or ''
reply[12], reply[13], reply[14], reply[15] = lastEntryID(), lost, newestVisible(), channel.held ~= '' and channel.outLast or ''
return { 'claimed', unpack(reply) }
