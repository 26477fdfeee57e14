-- Sends durable messages to the browser.
--
-- ARGV[1]  token of the claim; empty: act for the runtime that has the claim
-- ARGV[2]  one letter per message: e and d if it enables or disables text chat, - for any other
-- ARGV[3]  ID of the newest message that the sender knows; empty: none
-- ARGV[4]  message IDs of messages that may be repeated in another form, - for any other; empty: none
-- ARGV[5…] the ChannelMessages, without streamId and line feeds
-- returns  ID of the newest message, and for each message: sent, repeated or ended;
--          or one word for all of them: lost, claim_lost
--
-- Atomic so that a message is in the history before it is published, names its
-- predecessor correctly, and is stored once however often it is sent; and so that
-- text chat is switched before the browser is notified. It takes several messages
-- because reading the channel is most of the cost.
--
-- A message is a repetition if the history after ARGV[3] has it. Message IDs are only
-- needed for what is repeated later or by a restarted runtime.
local MAX_SENT = 1024 -- like MAX_SEEN, for message IDs of the runtime

load('state', 'claimToken', 'outLast', 'epoch', 'trimmed')
if channel.state == '' then return { 'lost' } end
if ARGV[1] ~= '' and channel.claimToken ~= ARGV[1] then return { 'claim_lost' } end
local names, ids = {}, {} -- one per message, - for none; those that are not -
for name in string.gmatch(ARGV[4], '%S+') do
  names[#names + 1] = name
  if name ~= '-' then ids[#ids + 1] = name end
end
local known = findIDs(SENT, SENT_BEFORE, ids)
local knownNumber = toNumber(ARGV[3])
local newestKnown = redis.call('XRANGE', OUT, knownNumber, knownNumber)[1]
if not newestKnown or newestKnown[1] ~= ARGV[3] then knownNumber = 0 end -- trimmed, or lost and its number reused
local unknown = readHistory(knownNumber + 1)
for i = 2, #unknown, 2 do known[unknown[i]] = true end
-- Where the history was trimmed after ARGV[3], everything before a message that it
-- still has was sent, too. A message with an ID proves nothing: a restarted runtime
-- may send new ones before it.
local lastRepeated = 0
for i = 5, #ARGV do
  if toNumber(channel.trimmed) > knownNumber and known[ARGV[i]] and (names[i - 4] or '-') == '-' then lastRepeated = i end
end

local before, number, outcomes, newIDs = channel.outLast, toNumber(channel.outLast), {}, {}
local notice = { '' }

local function send(letter, message, name)
  local key = name and name ~= '-' and name or message
  if known[key] then return 'repeated' end
  if channel.state == 'ended' then return 'ended' end
  if key == name then known[name], newIDs[#newIDs + 1] = true, name end
  if letter == 'd' then
    setField('chatOff', 'runtime')
  elseif letter == 'e' then
    setField('chatOff', '')
  end
  number = number + 1
  channel.outLast = newID(number)
  redis.call('XADD', OUT, channel.outLast, 'message', message)
  notice[#notice + 1] = message
  return 'sent'
end

for i = 5, #ARGV do
  outcomes[i - 3] = i <= lastRepeated and 'repeated' or send(string.sub(ARGV[2], i - 4, i - 4), ARGV[i], names[i - 4])
end
outcomes[1] = channel.outLast
if #notice > 1 then
  setField('outLast', channel.outLast)
  rememberIDs(SENT, SENT_BEFORE, MAX_SENT, newIDs)
  if number % TRIM_INTERVAL < #notice - 1 then trimHistory() end
  notice[1] = 'M' .. channel.epoch .. ' ' .. before .. ' ' .. channel.outLast
  redis.call('PUBLISH', PREFIX .. 'down', table.concat(notice, '\n'))
  if keepAlive(before == '') then save() end
end
return outcomes
