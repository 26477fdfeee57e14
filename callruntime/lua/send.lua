-- Sends a durable message to the browser.
--
-- ARGV[1]  the claim's token; empty: on behalf of whoever has the claim
-- ARGV[2]  the message's id
-- ARGV[3]  enable_text_chat, disable_text_chat, or empty
-- ARGV[4]  the ChannelMessage, without streamId
-- returns  'sent', 'repeated', 'ended', 'lost' or 'claim_lost'
--
-- Atomic so that a message is in the history before it is heard of, has the one
-- before it named without fail, and is there once however often it is sent; and
-- so that text chat is switched before the browser is told.
load('state', 'claimToken', 'outLast', 'epoch')
if channel.state == '' then return 'lost' end
if ARGV[1] ~= '' and channel.claimToken ~= ARGV[1] then return 'claim_lost' end
if channel.state == 'ended' then return redis.call('ZSCORE', SENT, ARGV[2]) and 'repeated' or 'ended' end
local number, previous = num(channel.outLast) + 1, channel.outLast
if redis.call('ZADD', SENT, 'NX', number, ARGV[2]) == 0 then return 'repeated' end
if ARGV[3] == 'disable_text_chat' then
  set('chatOff', 'runtime')
elseif ARGV[3] == 'enable_text_chat' then
  set('chatOff', '')
end
local id = number .. '-' .. now
redis.call('XADD', OUT, id, 'message', ARGV[4])
set('outLast', id)
if number % 16 == 0 then -- whoever reads trims exactly
  trim()
  redis.call('ZREMRANGEBYSCORE', SENT, '-inf', number - 1024)
end
redis.call('PUBLISH', BASE .. 'down', 'M' .. channel.epoch .. ' ' .. previous .. ' ' .. id .. '\n' .. ARGV[4])
if touch(number == 1) then save() end
return 'sent'
