-- uses: ids owner loss offers
-- Adds durable frames of a browser to the runtime stream.
--
-- ARGV[1]  ID of the connection that received them
-- ARGV[2]  its number, from connect.lua
-- ARGV[3]  ID of the newest entry that this script or connect.lua returned to the connection; empty: unknown
-- ARGV[4]  one flag per frame: c for chat, e or d if it enables or disables text chat, otherwise -
-- ARGV[5…] the message IDs of all frames, then all entries
-- returns  ID of the newest entry, then for each frame: appended, repeated, chat_disabled or backpressure;
--          or the ID and one word for all of them: appended, lost, ended, expired, not_owner
--
-- Atomic so that a frame that is sent again is on the stream once, and so that frames of
-- a replaced connection are rejected. It takes several frames because most of the time is
-- spent on reading the channel. If the runtime's claim has expired, the connection is
-- notified, so that it offers the session.
liveConnection = ARGV[1]
loadChannel('chatOff', 'epoch', 'claimUntil', 'offeredAt')
local rejection = ownerRejection(ARGV[1], ARGV[2])
if not rejection and isLost(IN, ARGV[3], lastEntryID(), committed) then
  reportLoss()
  rejection = 'lost'
end
if rejection then return { '', rejection } end

local flags, count = ARGV[4], #ARGV[4]
local known, newIDs = findIDs(SEEN, SEEN_BEFORE, { unpack(ARGV, 5, 4 + count) }), {}

local function append(flag, id, entry)
  if known[id] then return 'repeated' end
  if flag == 'c' and channel.chatOff ~= '' then return 'chat_disabled' end
  if backlog() >= 1 then return 'backpressure' end
  known[id], newIDs[#newIDs + 1] = true, id
  addEntry(entry)
  if flag == 'd' and channel.chatOff == '' then
    setField('chatOff', 'browser')
  elseif flag == 'e' and channel.chatOff == 'browser' then -- a browser cannot enable text chat if the runtime disabled it
    setField('chatOff', '')
  end
  return 'appended'
end

local outcomes = {}
for i = 1, count do outcomes[i] = append(string.sub(flags, i, i), ARGV[4 + i], ARGV[4 + count + i]) end
if #newIDs > 0 then
  rememberIDs(SEEN, SEEN_BEFORE, MAX_SEEN, newIDs)
  saveAndNotify()
end
if needsOffer() then requestRenewal() end
if #newIDs == count then outcomes = { 'appended' } end
return { lastEntryID(), unpack(outcomes) }
