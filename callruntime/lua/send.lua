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
if channel.state == '' then return 'lost' end
if ARGV[1] ~= '' and channel.claimToken ~= ARGV[1] then return 'claim_lost' end
if redis.call('ZSCORE', SENT, ARGV[2]) then return 'repeated' end
if channel.state == 'ended' then return 'ended' end
if ARGV[3] == 'disable_text_chat' then
  set('chatOff', 'runtime')
elseif ARGV[3] == 'enable_text_chat' then
  set('chatOff', '')
end
local number, previous = num(channel.outLast) + 1, channel.outLast
local id = int(number) .. '-' .. int(now)
redis.call('XADD', OUT, id, 'message', ARGV[4])
set('outLast', id)
redis.call('ZADD', SENT, int(number), ARGV[2])
if number % 64 == 0 then redis.call('ZREMRANGEBYSCORE', SENT, '-inf', int(number - 1024)) end
trim()
redis.call('PUBLISH', BASE .. 'down', 'M' .. channel.epoch .. ' ' .. previous .. ' ' .. id .. '\n' .. ARGV[4])
touch(number == 1)
return 'sent'
