-- Sends durable messages to the browser.
--
-- ARGV[1]  the claim's token; empty: on behalf of whoever has the claim
-- ARGV[2]  a letter for each message: e and d for one that enables or disables text chat, - for any other
-- ARGV[3]  the newest message that the sender knows of, by its id on the stream; empty: none
-- ARGV[4]  the message ids of those that may be sent again in another form, - for any other; empty: of none
-- ARGV[5…] the ChannelMessages, without streamId and line feeds
-- returns  the id of the newest message, and for each of these: sent, repeated or ended;
--          or one of these for all of them: lost, claim_lost
--
-- Atomic so that a message is in the history before it is heard of, has the one
-- before it named without fail, and is there once however often it is sent; and
-- so that text chat is switched before the browser is told. Several at a time
-- because most of the cost is in knowing the channel.
--
-- A message that is among those the sender does not know of has been sent before.
-- Only what comes again later, or from a runtime that was started anew, needs to be
-- remembered by its id.
load('state', 'claimToken', 'outLast', 'epoch', 'trimmed')
if channel.state == '' then return { 'lost' } end
if ARGV[1] ~= '' and channel.claimToken ~= ARGV[1] then return { 'claim_lost' } end
local names, named = {}, {}
for name in string.gmatch(ARGV[4], '%S+') do
  names[#names + 1] = name
  if name ~= '-' then named[#named + 1] = name end
end
local known = recall(SENT, SENT_BEFORE, named)
local heard = num(ARGV[3])
local newest = redis.call('XRANGE', OUT, heard, heard)[1]
if not newest or newest[1] ~= ARGV[3] then heard = 0 end -- let go of, or lost and its number given again
local unheard = history(heard + 1)
for i = 2, #unheard, 2 do known[unheard[i]] = true end
-- Up to this one all are there, or were in a history that is too short for them.
-- One with a name tells nothing: new ones may come before what is sent again later.
local there = 0
for i = 5, #ARGV do
  if num(channel.trimmed) > heard and known[ARGV[i]] and (names[i - 4] or '-') == '-' then there = i end
end

local before, number, outcomes, new = channel.outLast, num(channel.outLast), {}, {}
local notice = { '' }

local function send(letter, message, name)
  local key = name and name ~= '-' and name or message
  if known[key] then return 'repeated' end
  if channel.state == 'ended' then return 'ended' end
  if key == name then known[name], new[#new + 1] = true, name end
  if letter == 'd' then
    set('chatOff', 'runtime')
  elseif letter == 'e' then
    set('chatOff', '')
  end
  number = number + 1
  channel.outLast = id(number)
  redis.call('XADD', OUT, channel.outLast, 'message', message)
  notice[#notice + 1] = message
  return 'sent'
end

for i = 5, #ARGV do
  outcomes[i - 3] = i <= there and 'repeated' or send(string.sub(ARGV[2], i - 4, i - 4), ARGV[i], names[i - 4])
end
outcomes[1] = channel.outLast
if #notice > 1 then
  set('outLast', channel.outLast)
  remember(SENT, SENT_BEFORE, 1024, new)
  if number % 128 < #notice - 1 then trim() end -- whoever reads trims exactly
  notice[1] = 'M' .. channel.epoch .. ' ' .. before .. ' ' .. channel.outLast
  redis.call('PUBLISH', BASE .. 'down', table.concat(notice, '\n'))
  if touch(before == '') then save() end
end
return outcomes
