-- Sends durable messages to the browser.
--
-- ARGV[1]  token of the claim; empty: act for the runtime that has the claim
-- ARGV[2]  one flag per message: e or d if it enables or disables text chat, otherwise -; then h to hold the
--          messages back until confirm.lua
-- ARGV[3]  ID of the newest message that the sender knows; empty: none
-- ARGV[4]  one message ID per message, separated by spaces, if it may be sent again with other content, otherwise -;
--          empty: none
-- ARGV[5…] the ChannelMessages, without streamId and line feeds
-- returns  ID of the newest message, and for each message: sent, repeated or ended;
--          or one word for all of them: not_found, claim_lost, or lost, also if the message with ARGV[3] is lost.
--          The service checks each message as a whole before it delivers it
--
-- Atomic so that a message is in the history before it is published, is published with
-- the ID of its predecessor, and is stored once even if it is sent again; and so that
-- text chat is switched before the browser is notified. It takes several messages
-- because most of the time is spent on reading the channel.
--
-- A message is a duplicate if the history after ARGV[3] contains it. Message IDs are only
-- needed for messages that are sent again later or by a restarted runtime.
local MAX_SENT = 1024 -- like MAX_SEEN, for message IDs of the runtime

local messageIDs, ids = {}, {} -- one per message, which may be -; those that are not -
for id in string.gmatch(ARGV[4], '%S+') do
  messageIDs[#messageIDs + 1] = id
  if id ~= '-' then ids[#ids + 1] = id end
end
loadChannel('state', 'claimToken', 'outLast', 'epoch', 'trimmed', 'held')
local refusal = claimRefusal(ARGV[1])
if refusal then return { refusal } end
if channel.state == 'open' and isLost(OUT, ARGV[3], channel.outLast, toNumber(channel.trimmed)) then
  reportLoss()
  return { 'lost' }
end
local known = findIDs(SENT, SENT_BEFORE, ids)
local knownNumber = toNumber(ARGV[3])
local newer = readHistory(knownNumber + 1, '+')
for i = 2, #newer, 2 do known[newer[i]] = true end
-- If the history was trimmed after ARGV[3], all messages before one that it still contains
-- were sent as well. This does not hold for a message with an ID: a restarted runtime may
-- send new messages before it.
local lastRepeated = 0
for i = 5, #ARGV do
  if toNumber(channel.trimmed) > knownNumber and known[ARGV[i]] and (messageIDs[i - 4] or '-') == '-' then lastRepeated = i end
end

local before, number, outcomes, newIDs = channel.outLast, toNumber(channel.outLast), {}, {}
local notice = { '' }

local function send(flag, message, id)
  local key = id and id ~= '-' and id or message
  if known[key] then return 'repeated' end
  if channel.state == 'ended' then return 'ended' end
  if key == id then known[id], newIDs[#newIDs + 1] = true, id end
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

for i = 5, #ARGV do
  outcomes[i - 3] = i <= lastRepeated and 'repeated' or send(string.sub(ARGV[2], i - 4, i - 4), ARGV[i], messageIDs[i - 4])
end
outcomes[1] = channel.outLast
if #notice > 1 then
  setField('outLast', channel.outLast)
  rememberIDs(SENT, SENT_BEFORE, MAX_SENT, newIDs)
  if number % TRIM_INTERVAL < #notice - 1 then trimHistory() end
  if string.sub(ARGV[2], #ARGV - 3) == 'h' then
    setField('held', channel.held ~= '' and channel.held or before ~= '' and before or NO_MESSAGE)
  else
    if channel.held ~= '' then setField('held', '') end -- connections do not know before, so they read the history
    notice[1] = 'M' .. channel.epoch .. ' ' .. before .. ' ' .. channel.outLast
    redis.call('PUBLISH', PREFIX .. 'down', table.concat(notice, '\n'))
  end
  if keepAlive() then save() end
end
return outcomes
