-- Puts durable frames of a browser on the runtime's stream.
--
-- ARGV[1]  the connection they came by
-- ARGV[2]  a letter for each frame: c for chat, e and d for one that enables or disables text chat, - for any other
-- ARGV[3…] the message ids of all of them, then all the entries
-- returns  for each frame: appended, repeated, chat_disabled or backpressure;
--          or one of these for all of them: appended, lost, ended, not_owner
--
-- Atomic so that a frame is on the stream once, whatever is sent again, and
-- never from a connection that another one has replaced. Several at a time
-- because most of the cost is in knowing the channel.
load('owner', 'chatOff')
if channel.owner == '' or channel.owner ~= ARGV[1] then -- it is empty where the channel has ended
  fetch('state')
  return { channel.state == '' and 'lost' or channel.state == 'ended' and 'ended' or 'not_owner' }
end

local letters, count = ARGV[2], #ARGV[2]
local known, new = recall(SEEN, SEEN_BEFORE, { unpack(ARGV, 3, 2 + count) }), {}

local function take(letter, id, entry)
  if known[id] then return 'repeated' end
  if letter == 'c' and channel.chatOff ~= '' then return 'chat_disabled' end
  if backlog() >= 1 then return 'backpressure' end
  known[id], new[#new + 1] = true, id
  add(entry)
  if letter == 'd' and channel.chatOff == '' then
    set('chatOff', 'browser')
  elseif letter == 'e' and channel.chatOff == 'browser' then
    set('chatOff', '') -- what the runtime has switched off stays off
  end
  return 'appended'
end

local outcomes = {}
for i = 1, count do outcomes[i] = take(string.sub(letters, i, i), ARGV[2 + i], ARGV[2 + count + i]) end
if #new > 0 then
  remember(SEEN, SEEN_BEFORE, 4096, new)
  announce()
end
return outcomes
