-- The runtime's claim of a channel, and offers of sessions that are unclaimed. channel.lua has what all scripts share.

local OFFER_INTERVAL = 60000 -- ms between two offers of an unclaimed session

-- Returns whether the session should be offered to runtimes: it is unclaimed and was not offered within OFFER_INTERVAL.
-- Needs claimUntil and offeredAt.
local function needsOffer()
  return toNumber(channel.claimUntil) <= now and now - toNumber(channel.offeredAt) >= OFFER_INTERVAL
end

-- Returns 0, or what the caller should do: 1 offer the session to runtimes, 2 also count that the claim has expired. Unless
-- it is 0, offeredAt has changed and the script must save it. Needs claimedBy, claimUntil and offeredAt.
local function takeOffer()
  if not needsOffer() then return 0 end
  local expired = channel.offeredAt == '' and channel.claimedBy ~= '' -- it was not offered since the claim, nor released
  channel.offeredAt = string.format('%d', now)
  return expired and 2 or 1
end

-- Returns why a runtime cannot act on the channel: not_found, lost or claim_lost; nil if it can. A runtime with a token had
-- a claim, so a channel that does not exist is lost. A channel without a claim token was never claimed, or has lost data.
-- Needs state and claimToken.
local function claimRejection(token)
  if channel.state == '' then return token == '' and 'not_found' or 'lost' end
  if token == '' or token == channel.claimToken then return nil end
  return channel.claimToken == '' and 'lost' or 'claim_lost'
end

-- Returns the token of the newest claim, also after a loss of data. Needs claimToken and lostToken.
local function newestToken() return channel.claimToken ~= '' and channel.claimToken or channel.lostToken end

-- Returns why a claim cannot be renewed: lost or claim_lost; nil if it can. It reports what the store has lost to the browser
-- and to the runtime that has the claim, even if that is another one. The arguments are those of the script claim.
local function renewalRejection(runtime, token, message, item, entry, epoch, early)
  local rejection = claimRejection(token) or channel.claimedBy ~= runtime and 'claim_lost' or nil -- it was released
  -- A runtime that has lost its claim may be the only one that knows of a loss, unless one was reported since.
  local mayReport = not rejection or rejection == 'claim_lost' and not isLaterEpoch(channel.epoch, epoch)
  local isOpen = channel.state == 'open' -- an ended channel needs its entries only
  local messageLost = isOpen and isMessageLost(message)
  local itemLost = isOpen and not rejection and isItemLost(item) -- after a later claim, it may be settled and forgotten
  local entryLost = isEntryLost(entry)
  if mayReport and (messageLost or itemLost or entryLost and early ~= '1') then
    reportLoss()
    return rejection or 'lost'
  elseif entryLost and not rejection then -- it was not acknowledged, so its sender repeats it
    reportLossToRuntime()
    return 'lost'
  end
  return rejection
end

-- Claims a channel for a runtime, opening it if requested, or renews a claim.
--
-- runtime   its name
-- token     of the claim, a new one for every claim
-- lease     0 releases the claim
-- action    open, attach, accept, resume, recover (attach after the store has lost data) or renew
-- ARGV[6…]  of the action:
--   open     epoch, team, endpoint, mode, call ID, transaction ID, profile, and the limits: history messages, history ms,
--            idle ms, keep ms, backlog entries, backlog bytes
--   accept   awaitChat: kind and ttl of the work items that the script frame registers, with a space between; empty: none
--   renew    message, item, entry, epoch, early
--   resume   entry, team of the runtime (may be empty), early
--   recover  awaitChat, token of the claim that lost data
-- returns  {'claimed', epoch, team, endpoint, mode, call ID, transaction ID, profile, committed position, Unix ms of the last
--          loss of data, offer of the session, untilDeadline, ID of the newest entry, 1 if the entry of resume is lost,
--          awaitChat, ID of the newest visible message, ID of the newest message if it is held back}; empty where there is
--          none; or {'not_found'}; {'lost'} if the store has lost data that the runtime relies on; {'ended'}; {'foreign'} if
--          the channel belongs to another team or endpoint; {'taken'} by another runtime, or a later request of this one;
--          {'claim_lost'} if that is the claim to renew, resume or recover
--
-- Atomic so that only one of two runtimes gets the channel.
--
-- With open, attach, resume and recover, a restarted runtime takes over the claim under its name. With accept it does not,
-- because a session can be offered twice. Of two claims under one name the one that was requested later wins, even if the
-- other arrives later. An ended channel can be claimed until all its entries are committed.
function claim(runtime, token, lease, action, requestedAt)
  if action ~= 'open' or redis.call('EXISTS', META) == 1 then runWhenFull() end -- a full store rejects new channels only
  loadChannel('state', 'team', 'endpoint', 'claimedBy', 'claimToken', 'claimUntil', 'claimRequestedAt', 'epoch', 'outLast', 'trimmed',
    'held', 'lostToken', 'queue', 'awaitChat')
  local newest = newestToken()
  if channel.state == '' and action == 'open' then
    openChannel(6)
    createStreams()
  elseif channel.state == '' then
    return { action == 'renew' and 'lost' or 'not_found' }
  elseif action == 'open' and (channel.team ~= ARGV[7] or channel.endpoint ~= ARGV[8]) then
    return { 'foreign' }
  elseif channel.state == 'ended' and action ~= 'renew' and (action == 'open' or committed == entries) then
    return { 'ended' }
  elseif action == 'resume' and (channel.claimedBy ~= runtime or ARGV[7] ~= '' and channel.team ~= ARGV[7]) then
    return { 'claim_lost' }
  elseif action == 'recover' and newest ~= '' and newest ~= ARGV[7] and newest ~= token then -- a later connection has it
    return { 'claim_lost' }
  end
  local entryLost = ''
  if action == 'renew' then
    local rejection = renewalRejection(runtime, token, unpack(ARGV, 6))
    if rejection then return { rejection } end
    if channel.held ~= '' then showMessages(ARGV[6]) end -- the script confirm may have failed
  elseif channel.claimedBy ~= '' -- not released: claimUntil does not tell if the clock was set back since
    and toNumber(channel.claimUntil) > now and channel.claimToken ~= token
    and (action == 'accept' or channel.claimedBy ~= runtime or isOutdated(requestedAt, channel.claimRequestedAt)) then
    return { 'taken' }
  else
    setField('claimRequestedAt', requestedAt == '' and now or math.min(now, requestedAt))
    if action == 'resume' and isEntryLost(ARGV[6]) then
      if ARGV[8] == '1' then reportLossToRuntime() else reportLoss() end
      entryLost = '1'
    end
    if action == 'recover' then setField('lostAt', now) end -- every loss has another time
    if action ~= 'resume' then channel.awaitChat = (action == 'accept' or action == 'recover') and ARGV[6] or '' end
    redis.call('PUBLISH', PREFIX .. 'up', 'C' .. token) -- the former holder checks its claim
  end
  local released = tonumber(lease) == 0
  redis.call('HSET', META, 'claimedBy', released and '' or runtime, 'claimToken', token, 'claimUntil', now + lease, 'offeredAt', '',
    'awaitChat', released and '' or channel.awaitChat)
  if released then requestRenewal() end -- so that the session is offered at once
  keepAliveIfDue()
  readFields('mode', 'callId', 'transactionId', 'profile', 'committed', 'lostAt', 'offer')
  return { 'claimed', channel.epoch, channel.team, channel.endpoint, channel.mode, channel.callId, channel.transactionId,
    channel.profile, channel.committed, channel.lostAt, channel.offer, untilDeadline(), lastEntryID(), entryLost,
    channel.awaitChat, newestVisible(), channel.held ~= '' and channel.outLast or '' }
end

-- Checks that the store has what it acknowledged under a claim that has ended, and reports the loss otherwise.
--
-- runtime      name of the claim if its holder still needs it; otherwise empty
-- requestedAt  the earliest time at which the claim can have been requested, so that it is not taken for an older one
-- awaitChat    of the claim, see the script claim
-- returns  'lost' if the holder should recover the claim, because the store has an older one again; otherwise 'kept', even if
--          other data is lost
--
-- Atomic so that a loss that concerns both sides is reported once: it starts a new epoch.
function check_claim(runtime, token, requestedAt, epoch, message, item, early, awaitChat)
  runWhenFull()
  loadChannel('state', 'epoch', 'claimRequestedAt', 'outLast', 'trimmed', 'queue')
  if channel.state == '' then return 'kept' end
  local older = runtime ~= '' and isOutdated(channel.claimRequestedAt, requestedAt)
  local isOpen = channel.state == 'open' -- an ended channel needs its entries only
  if not isLaterEpoch(channel.epoch, epoch) -- otherwise the loss was reported
    and (older and early ~= '1' or isOpen and (isMessageLost(message) or isItemLost(item))) then
    reportLoss()
  end
  if not older then return 'kept' end
  redis.call('HSET', META, 'claimedBy', runtime, 'claimToken', '', 'lostToken', token, 'awaitChat', awaitChat) -- for recover or resume
  return 'lost'
end

-- Releases a claim, unless another one was granted since.
--
-- token    of the claim, or the ID of a connection that has ended, with which the tokens of its claims start
-- returns  {token of the released claim, the session's offer if it should be offered to runtimes}; empty where there is none
--
-- Atomic so that a claim that was resumed meanwhile is kept.
function revoke(token)
  runWhenFull()
  loadChannel('state', 'claimToken', 'lostToken')
  local current = newestToken()
  if channel.state == '' or string.sub(current, 1, #token) ~= token then return { '', '' } end
  redis.call('HSET', META, 'claimedBy', '', 'claimUntil', now, 'offeredAt', now, 'awaitChat', '')
  return { current, redis.call('HGET', META, 'offer') or '' } -- it has none once the channel's end is committed
end
