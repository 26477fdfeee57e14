-- Claims a channel for a runtime, opening it if requested, or renews a claim.
--
-- ARGV[1]  name of the runtime
-- ARGV[2]  token of the claim, a new one for every claim
-- ARGV[3]  lease in ms; 0 releases the claim
-- ARGV[4]  action: open, attach, accept, resume or renew
-- ARGV[5]  when the claim was requested, in Unix ms of the store's clock; empty: now
-- ARGV[6…] for open: epoch, team, endpoint, mode, call ID, transaction ID, profile, and
--          the limits: history messages, history ms, backlog entries, backlog bytes, idle ms, keep ms;
--          for renew: ID of the newest message that send.lua returned, ID of the newest work item that is
--          awaited and not expired, ID of the entry that was received last; all may be empty;
--          for resume: ID of the newest entry that was received under the claim, team of the runtime; both may be empty
-- returns  {'claimed', epoch, team, endpoint, mode, call ID, transaction ID, profile, committed position,
--          when a loss of data was last detected in Unix ms, or empty, offer of the session,
--          ms until the next work item times out, or empty, ID of the newest entry, 1 if the entry of resume is lost},
--          or one of: {'not_found'} unknown channel; {'lost'} the store has lost data that the runtime relies on; {'ended'} an ended channel
--          cannot be opened, and not be claimed once all its entries are committed; {'foreign'} the channel belongs to another team or endpoint; {'taken'} another runtime has the claim, or a later request of this one;
--          {'claim_lost'} the claim to renew is lost
--
-- Atomic so that only one of two runtimes gets the channel. With open, attach and resume, a
-- restarted runtime takes over the claim under its name. With accept it does not,
-- because the same session can be offered twice. An ended channel can be claimed, so
-- that the runtime receives all entries acknowledged before the end. Of two claims under
-- one name the one that was requested later wins, even if the other arrives later.
if ARGV[4] ~= 'open' or redis.call('EXISTS', META) == 1 then runWhenFull() end
loadChannel('state', 'team', 'endpoint', 'claimedBy', 'claimToken', 'claimUntil', 'claimRequestedAt', 'epoch', 'outLast', 'trimmed', 'held')
local action, requestedAt, lost = ARGV[4], ARGV[5], ''
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
end
if action == 'renew' then
  local refusal = claimRefusal(ARGV[2]) or channel.claimedBy ~= ARGV[1] and 'claim_lost' or nil -- it was released
  if not refusal and channel.state == 'open' and (isLost(OUT, ARGV[6], channel.outLast, toNumber(channel.trimmed))
    or isItemLost(ARGV[7]) or isLost(IN, ARGV[8], lastEntryID(), committed)) then
    reportLoss()
    refusal = 'lost'
  end
  if refusal then return { refusal } end
elseif toNumber(channel.claimUntil) > now and channel.claimToken ~= ARGV[2]
  and (action == 'accept' or channel.claimedBy ~= ARGV[1] or isOutdated(requestedAt, channel.claimRequestedAt)) then
  return { 'taken' }
else
  setField('claimRequestedAt', requestedAt == '' and now or math.min(now, requestedAt))
  if action == 'resume' and channel.state == 'open' and isLost(IN, ARGV[6], lastEntryID(), committed) then
    reportLoss()
    lost = '1'
  end
  redis.call('PUBLISH', PREFIX .. 'up', 'C' .. ARGV[2]) -- the former holder checks its claim
end
showMessages(action ~= 'renew' and channel.outLast or ARGV[6]) -- the former holder may not have
local released = tonumber(ARGV[3]) == 0
redis.call('HSET', META, 'claimedBy', released and '' or ARGV[1], 'claimToken', ARGV[2], 'claimUntil', now + ARGV[3], 'offeredAt', '')
if released then requestRenewal() end -- so that the session is offered at once
if keepAlive() then save() end
local reply = redis.call('HMGET', META, 'epoch', 'team', 'endpoint', 'mode', 'callId', 'transactionId', 'profile', 'committed', 'lostAt', 'offer')
for i = 1, 10 do reply[i] = reply[i] or '' end
reply[11] = dueAt < NEVER and string.format('%d', dueAt - now) or ''
reply[12], reply[13] = lastEntryID(), lost
return { 'claimed', unpack(reply) }
