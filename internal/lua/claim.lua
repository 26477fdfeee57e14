-- Claims a channel for a runtime, opening it if requested, or renews a claim.
--
-- ARGV[1]  name of the runtime
-- ARGV[2]  token of the claim, a new one for every claim
-- ARGV[3]  lease in ms, at most MAX_LEASE; 0 releases the claim
-- ARGV[4]  action: open, attach, accept or renew
-- ARGV[5]  when the claim was requested, in Unix ms of the store's clock; empty: now
-- ARGV[6…] for open: epoch, team, endpoint, mode, call ID, transaction ID, profile, and
--          the limits: history messages, history ms, backlog entries, backlog bytes, idle ms, keep ms;
--          for renew: ID of the newest message that send.lua returned, and ID of the newest work item that is
--          awaited and not expired, ID of the entry that was received last; all may be empty
-- returns  {'claimed', epoch, team, endpoint, mode, call ID, transaction ID, profile, committed position,
--          when a loss of data was last detected in Unix ms, or empty, offer of the session},
--          or one of: {'not_found'} unknown channel; {'lost'} the store has lost data that the runtime relies on; {'ended'} an ended channel
--          cannot be opened, and not be claimed once all its entries are committed; {'foreign'} the channel belongs to another team or endpoint; {'taken'} another runtime has the claim, or a later request of this one;
--          {'claim_lost'} the claim to renew is lost
--
-- Atomic so that only one of two runtimes gets the channel. With open and attach, a
-- restarted runtime takes over the claim under its name. With accept it does not,
-- because the same session can be offered twice. An ended channel can be claimed, so
-- that the runtime receives all entries acknowledged before the end. Of two claims under
-- one name the one that was requested later wins, even if the other arrives later.
local MAX_LEASE, MAX_LIMIT = 86400000, 999999999999

-- Returns an error reply if an argument is invalid. The keys are checked here because every
-- runtime starts with a claim.
local function checkArguments()
  for i, name in ipairs({ 'meta', 'in', 'out', 'seen', 'sent', 'work', 'forget', 'seenBefore', 'sentBefore' }) do
    if KEYS[i] ~= PREFIX .. name then return invalid('key ' .. i, KEYS[i], 'use the key ' .. name .. ' of the channel') end
  end
  local action = ARGV[4]
  if not ARGV[1] or ARGV[1] == '' then return invalid('runtime name', ARGV[1], 'use a name that stays the same after a restart') end
  if not ARGV[2] or ARGV[2] == '' then return invalid('token', ARGV[2], 'use a new random text for every claim') end
  if not isNumber(ARGV[3], MAX_LEASE) then return invalid('lease', ARGV[3], 'use 0 to 86400000 ms') end
  if action ~= 'open' and action ~= 'attach' and action ~= 'accept' and action ~= 'renew' then
    return invalid('action', action, 'use open, attach, accept or renew')
  end
  if (ARGV[5] or '') ~= '' and not isNumber(ARGV[5], NEVER) then
    return invalid('time of the request', ARGV[5], 'use Unix ms, or empty')
  end
  if action == 'open' then
    if not isName(ARGV[6]) then return invalid('epoch', ARGV[6], NAME_RULE) end
    for i, name in ipairs({ 'team', 'endpoint' }) do
      if (ARGV[6 + i] or '') == '' then return invalid(name, ARGV[6 + i], 'use its ID') end
    end
    if ARGV[12] ~= '' and not string.find(ARGV[12] or '', '^%s*{.*}%s*$') then return invalid('profile', ARGV[12], 'use a JSON object, or empty') end
    for i, name in ipairs({ 'history messages', 'history ms', 'backlog entries', 'backlog bytes', 'idle ms', 'keep ms' }) do
      if not isNumber(ARGV[12 + i], MAX_LIMIT) then return invalid(name, ARGV[12 + i], 'use 0 to 999999999999') end
    end
  elseif action == 'renew' then
    if (ARGV[6] or '') ~= '' and not isID(ARGV[6]) then return invalid('last ID', ARGV[6], ID_RULE .. ', or empty') end
    if (ARGV[7] or '') ~= '' and not isName(ARGV[7]) then return invalid('work item ID', ARGV[7], NAME_RULE .. ', or empty') end
    if (ARGV[8] or '') ~= '' and not isID(ARGV[8]) then return invalid('position', ARGV[8], ID_RULE .. ', or empty') end
  end
end

local refused = checkArguments()
if refused then return refused end
if ARGV[4] ~= 'open' or redis.call('EXISTS', META) == 1 then runWhenFull() end
loadChannel('state', 'team', 'endpoint', 'claimedBy', 'claimToken', 'claimUntil', 'claimRequestedAt', 'epoch', 'outLast', 'trimmed', 'held')
local action, requestedAt = ARGV[4], ARGV[5] or ''
if channel.state == '' and action == 'open' then
  openChannel(6)
  createKeys()
elseif channel.state == '' then
  return { action == 'renew' and 'lost' or 'not_found' }
elseif channel.state == 'ended' and action ~= 'renew' and (action == 'open' or committed == entries) then
  return { 'ended' }
elseif action == 'open' and (channel.team ~= ARGV[7] or channel.endpoint ~= ARGV[8]) then
  return { 'foreign' }
end
if action == 'renew' then
  local refusal = claimRefusal(ARGV[2])
  if not refusal and channel.state == 'open' and (isLost(OUT, ARGV[6] or '', channel.outLast, toNumber(channel.trimmed))
    or isItemLost(ARGV[7]) or isLost(IN, ARGV[8] or '', lastEntryID(), committed)) then
    reportLoss()
    refusal = 'lost'
  end
  if refusal then return { refusal } end
elseif toNumber(channel.claimUntil) > now and channel.claimToken ~= ARGV[2]
  and (action == 'accept' or channel.claimedBy ~= ARGV[1] or isOutdated(requestedAt, channel.claimRequestedAt)) then
  return { 'taken' }
else
  setField('claimRequestedAt', requestedAt == '' and now or math.min(now, requestedAt))
end
showMessages(action ~= 'renew' and channel.outLast or ARGV[6] or '') -- the former holder may not have
local released = tonumber(ARGV[3]) == 0
redis.call('HSET', META, 'claimedBy', released and '' or ARGV[1], 'claimToken', ARGV[2], 'claimUntil', now + ARGV[3], 'offeredAt', '')
if released then requestRenewal() end -- so that the session is offered at once
if keepAlive() then save() end
local reply = redis.call('HMGET', META, 'epoch', 'team', 'endpoint', 'mode', 'callId', 'transactionId', 'profile', 'committed', 'lostAt', 'offer')
for i = 1, 10 do reply[i] = reply[i] or '' end
return { 'claimed', unpack(reply) }
