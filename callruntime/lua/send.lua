-- Sends durable messages to the browser.
--
-- ARGV[1]  the claim's token; empty: on behalf of whoever has the claim
-- ARGV[2]  a letter for each message: e and d for one that enables or disables text chat, - for any other
-- ARGV[3…] the ids of all of them, then all the ChannelMessages, without streamId
-- returns  for each message: sent, repeated or ended; or one of these for all of them: lost, claim_lost
--
-- Atomic so that a message is in the history before it is heard of, has the one
-- before it named without fail, and is there once however often it is sent; and
-- so that text chat is switched before the browser is told. Several at a time
-- because most of the cost is in knowing the channel.
load('state', 'claimToken', 'outLast', 'epoch')
if channel.state == '' then return { 'lost' } end
if ARGV[1] ~= '' and channel.claimToken ~= ARGV[1] then return { 'claim_lost' } end
local letters, count, before = ARGV[2], #ARGV[2], num(channel.outLast)
local known, new, outcomes = recall(SENT, SENT_BEFORE, 3, 2 + count), {}, {}
local number, notice, messages = before, { 'M', channel.epoch, ' ', channel.outLast }, {}

local function send(letter, messageId, message)
  if known[messageId] then return 'repeated' end
  if channel.state == 'ended' then return 'ended' end
  number = number + 1
  known[messageId], new[#new + 1] = true, messageId
  if letter == 'd' then
    set('chatOff', 'runtime')
  elseif letter == 'e' then
    set('chatOff', '')
  end
  channel.outLast = id(number)
  redis.call('XADD', OUT, channel.outLast, 'message', message)
  notice[#notice + 1] = string.format(' %s:%d', channel.outLast, #message)
  messages[#messages + 1] = message
  return 'sent'
end

for i = 1, count do outcomes[i] = send(string.sub(letters, i, i), ARGV[2 + i], ARGV[2 + count + i]) end
if #new > 0 then
  set('outLast', channel.outLast)
  remember(SENT, SENT_BEFORE, 1024, before, new)
  if number % 128 < #new then trim() end -- whoever reads trims exactly
  notice[#notice + 1] = '\n'
  for i = 1, #messages do notice[#notice + 1] = messages[i] end
  redis.call('PUBLISH', BASE .. 'down', table.concat(notice))
  if touch(before == 0) then save() end
end
return outcomes
