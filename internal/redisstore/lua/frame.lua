-- Puts a browser's durable frame on the runtime's stream.
--
-- ARGV[1]  the connection it came by
-- ARGV[2]  the frame's message id
-- ARGV[3]  1 for a chat frame
-- ARGV[4]  enable_text_chat, disable_text_chat, or empty
-- ARGV[5]  the entry
-- returns  appended, repeated, lost, ended, not_owner, chat_disabled or backpressure
--
-- Atomic so that a frame is on the stream once, whatever is sent again, and
-- never from a connection that another one has replaced.
if channel.state == '' then return 'lost' end
if channel.state == 'ended' then return 'ended' end
if channel.owner ~= ARGV[1] then return 'not_owner' end
if redis.call('ZSCORE', SEEN, ARGV[2]) then return 'repeated' end
if ARGV[3] == '1' and channel.chatOff ~= '' then return 'chat_disabled' end
if backlog() >= 1 then return 'backpressure' end
append(ARGV[5])
local number = num(channel.inLast)
redis.call('ZADD', SEEN, int(number), ARGV[2])
-- Now and then, for it need not be exact: the newest 4,096 are remembered, and
-- a few more.
if number % 64 == 0 then redis.call('ZREMRANGEBYRANK', SEEN, 0, -4097) end
if ARGV[4] == 'disable_text_chat' and channel.chatOff == '' then
  set('chatOff', 'browser')
elseif ARGV[4] == 'enable_text_chat' and channel.chatOff == 'browser' then
  set('chatOff', '') -- what the runtime has switched off stays off
end
return 'appended'
