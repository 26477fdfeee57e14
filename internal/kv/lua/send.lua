-- uses: ids loss trim commit
-- Sends durable messages to the browser.
--
-- ARGV[1]  token of the claim; empty: act for the runtime that has the claim
-- ARGV[2]  one flag per message: e or d if it enables or disables text chat, otherwise -; then h to hold the
--          messages back until confirm.lua
-- ARGV[3]  ID of the newest message that the sender knows; empty: none
-- ARGV[4]  position to commit before; empty: none
-- ARGV[5…] the message IDs of all messages, then all ChannelMessages, without streamId and line feeds
-- returns  ID of the newest message, and for each message: sent, repeated or ended;
--          or one word for all of them: not_found, claim_lost, unknown if ARGV[4] needs commit.lua, or lost, also if the message with ARGV[3] is lost.
--          The service checks each message as a whole before it delivers it
--
-- Atomic so that a message is in the history before it is published, is published with
-- the ID of its predecessor, and is stored once even if it is sent again; and so that
-- text chat is switched before the browser is notified. It takes several messages
-- because most of the time is spent on reading the channel.
local MAX_SENT = 1024 -- like MAX_SEEN, for message IDs of the runtime

loadChannel('state', 'claimToken', 'outLast', 'epoch', 'trimmed', 'held')
local rejection = claimRejection(ARGV[1])
if rejection then return { rejection } end
local changes = commitFirst(ARGV[4])
if not changes then return { 'unknown' } end
local flowChanged = #changes > 0
if channel.state == 'open' and isLost(OUT, ARGV[3], channel.outLast, toNumber(channel.trimmed)) then
  reportLoss()
  return { 'lost' }
end
local count = (#ARGV - 4) / 2
local before, number = channel.outLast, toNumber(channel.outLast)
-- Until there are enough messages to fill the newer set, the older one is empty, and the reply
-- of SADD tells whether an ID is known.
local direct = channel.state == 'open' and number + count < MAX_SENT - 1
local known, newIDs = direct and {} or findIDs(SENT, SENT_BEFORE, { unpack(ARGV, 5, 4 + count) }), {}
local outcomes, notice = {}, { '' }

local function send(flag, id, message)
  if known[id] or direct and redis.call('SADD', SENT, id) == 0 then return 'repeated' end
  if channel.state == 'ended' then return 'ended' end
  known[id], newIDs[#newIDs + 1] = true, id
  if flag == 'd' then
    setField('chatOff', 'runtime')
  elseif flag == 'e' then
    setField('chatOff', '')
  end
  number = number + 1
  channel.outLast = newID(number)
  redis.call('XADD', OUT, channel.outLast, 'message', message)
  notice[#notice + 1] = message
  return 'sent'
end

for i = 1, count do outcomes[1 + i] = send(string.sub(ARGV[2], i, i), ARGV[4 + i], ARGV[4 + count + i]) end
outcomes[1] = channel.outLast
if #newIDs > 0 then
  changes[#changes + 1] = 'outLast'
  changes[#changes + 1] = channel.outLast
  if not direct then rememberIDs(SENT, SENT_BEFORE, MAX_SENT, newIDs) end
  if number % TRIM_INTERVAL < #newIDs then trimHistory() end
  if string.sub(ARGV[2], count + 1) == 'h' then
    setField('held', channel.held ~= '' and channel.held or before ~= '' and before or NO_MESSAGE)
  else
    if channel.held ~= '' then setField('held', '') end -- connections do not know before, so they read the history
    notice[1] = 'M' .. channel.epoch .. ' ' .. before .. ' ' .. channel.outLast
    redis.call('PUBLISH', PREFIX .. 'down', table.concat(notice, '\n'))
  end
  flowChanged = keepAlive() or flowChanged
end
if flowChanged then
  saveAndDrop(changes)
elseif #changes > 0 then
  redis.call('HSET', META, unpack(changes))
end
return outcomes
