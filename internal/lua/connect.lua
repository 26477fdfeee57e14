-- Makes a connection the owner of a session's channel, which is opened if needed.
--
-- ARGV[1]  ID of the connection
-- ARGV[2]  ID of the connection that it resumes; empty: none
-- ARGV[3]  1: reject while another connection owns the session
-- ARGV[4]  lease of the ownership in ms
-- ARGV[5]  1: resume from the cursor in ARGV[6] and ARGV[7]
-- ARGV[6]  epoch of the cursor; *: the current one
-- ARGV[7]  ID of the cursor
-- ARGV[8]  entry that reports the connection to the runtime
-- ARGV[9…] arguments for opening the channel, in the order of claim.lua
-- returns  {'attached', epoch, newest ID, 1 if the caller should offer the session, 1 if text chat is on, 1 if recovered,
--          {ID, message, ID, message …}}, or {'in_use'}, {'ended'}, {'foreign'}
--
-- Atomic so that only one of two connections owns the session, and so that no message is
-- missing between the history that is read and the messages that are published later.
load('state', 'epoch', 'team', 'endpoint', 'owner', 'ownerUntil', 'connections', 'chatOff', 'claimUntil', 'offeredAt', 'outLast')
local refusal = connectionRefusal(ARGV[1], ARGV[2], ARGV[3], ARGV[10], ARGV[11])
if refusal then return { refusal } end
if channel.state == '' then openChannel(9) end
if channel.owner ~= '' and channel.owner ~= ARGV[1] then redis.call('PUBLISH', PREFIX .. 'down', 'R' .. ARGV[1]) end
local first = channel.connections == ''
redis.call('HSET', META, 'owner', ARGV[1], 'ownerUntil', now + ARGV[4], 'connections', toNumber(channel.connections) + 1)
-- Create the set of message IDs, with an ID that no message has. frame_fast.lua must not
-- create it, since it does not set a TTL.
if first then redis.call('SADD', SEEN, '') end
keepAlive(true)
save()
addSessionEvent(ARGV[8])

local recovered, missed = 0, {}
if ARGV[5] == '1' then
  local found = readHistoryAfter(ARGV[6] == '*' and channel.epoch or ARGV[6], ARGV[7])
  if found then recovered, missed = 1, found end
elseif first then
  trimHistory()
  missed = readHistory(1)
end
return { 'attached', channel.epoch, channel.outLast, shouldOffer(), channel.chatOff == '' and 1 or 0, recovered, missed }
