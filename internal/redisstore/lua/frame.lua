-- Puts durable frames of a browser on the runtime's stream.
--
-- ARGV[1]  the connection they came by
-- ARGV[2…] for each frame: its message id; 1 for a chat frame, else empty; enable_text_chat,
--          disable_text_chat or empty; the entry
-- returns  for each frame: appended, repeated, chat_disabled or backpressure;
--          or one of these for all of them: lost, ended, not_owner
--
-- Atomic so that a frame is on the stream once, whatever is sent again, and
-- never from a connection that another one has replaced. Several at a time
-- because most of the cost is in knowing the channel.
load('owner', 'chatOff')
if channel.owner == '' or channel.owner ~= ARGV[1] then -- it is empty where the channel has ended
  fetch('state')
  return { channel.state == '' and 'lost' or channel.state == 'ended' and 'ended' or 'not_owner' }
end

local function take(id, chat, switch, entry)
  local refusal = chat == '1' and channel.chatOff ~= '' and 'chat_disabled' or backlog() >= 1 and 'backpressure'
  if refusal then return redis.call('ZSCORE', SEEN, id) and 'repeated' or refusal end
  if redis.call('ZADD', SEEN, 'NX', entries + 1, id) == 0 then return 'repeated' end
  add(entry)
  -- Now and then, for it need not be exact: the newest 4,096 are remembered,
  -- and a few more.
  if entries % 64 == 0 then redis.call('ZREMRANGEBYRANK', SEEN, 0, -4097) end
  if switch == 'disable_text_chat' and channel.chatOff == '' then
    set('chatOff', 'browser')
  elseif switch == 'enable_text_chat' and channel.chatOff == 'browser' then
    set('chatOff', '') -- what the runtime has switched off stays off
  end
  return 'appended'
end

local before, outcomes = entries, {}
for i = 2, #ARGV, 4 do outcomes[#outcomes + 1] = take(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]) end
if entries ~= before then announce() end
return outcomes
