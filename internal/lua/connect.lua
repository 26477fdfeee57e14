-- Makes a connection the owner of a session's channel, which is opened if needed.
--
-- ARGV[1]  the connection
-- ARGV[2]  the connection that it continues; empty: none
-- ARGV[3]  1: refuse while another connection's lease has not expired
-- ARGV[4]  lease of the ownership in ms
-- ARGV[5]  1: resume at the cursor that follows
-- ARGV[6]  epoch of the cursor; *: the current one
-- ARGV[7]  ID of the cursor
-- ARGV[8]  entry that reports the connection to the runtime
-- ARGV[9…] what the channel is opened with, in the order of claim.lua
-- returns  {'attached', epoch, newest ID, 1 if to be offered, 1 if text chat is on, 1 if recovered,
--          {ID, message, ID, message …}}, or {'in_use'}, {'ended'}, {'foreign'}
--
-- Atomic so that one of two connections owns the session, and so that no message falls
-- between the history that is read and the messages that are published afterwards.
load('state', 'epoch', 'team', 'endpoint', 'owner', 'ownerUntil', 'connections', 'chatOff', 'claimUntil', 'offeredAt', 'outLast')
local refused = connectionRefusal(ARGV[1], ARGV[2], ARGV[3], ARGV[10], ARGV[11])
if refused then return { refused } end
if channel.state == '' then openChannel(9) end
if channel.owner ~= '' and channel.owner ~= ARGV[1] then redis.call('PUBLISH', PREFIX .. 'down', 'R' .. ARGV[1]) end
local first = channel.connections == ''
redis.call('HSET', META, 'owner', ARGV[1], 'ownerUntil', now + ARGV[4], 'connections', toNumber(channel.connections) + 1)
-- The set of message IDs exists from the first connection on, with an ID that no
-- message has: frame_fast.lua adds to it and must not create it, since it sets no TTL.
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
