-- Makes a connection the owner of a session's channel.
--
-- ARGV[1]  the connection
-- ARGV[2]  the connection it succeeds, or empty
-- ARGV[3]  1: refuse while another connection is alive
-- ARGV[4]  lease of the ownership in ms; 0: only say whether it would be refused
-- ARGV[5]  resume: none, or at
-- ARGV[6]  epoch of the position to resume at; *: of this life
-- ARGV[7]  its id
-- ARGV[8]  the entry that tells the runtime
-- ARGV[9…] what the channel is opened with, as claim.lua takes it
-- returns  {'attached', epoch, newest id, 1 if the first connection, 1 if to be offered, 1 if text chat is on,
--          1 if recovered, {id, message, id, message …}}, or {'in_use'}, {'ended'}, {'foreign'},
--          {'free'} when it was only asked
--
-- Atomic because of two connections one must own the session, and because what
-- is sent between reading the history and hearing of what is new would be lost.
load('state', 'epoch', 'team', 'endpoint', 'owner', 'ownerUntil', 'connections', 'chatOff', 'claimUntil', 'offeredAt', 'outLast')
local asking = ARGV[4] == '0'
if channel.state == '' then
  if not asking then open(9) end
elseif channel.state == 'ended' then
  return { 'ended' }
elseif channel.team ~= ARGV[10] or channel.endpoint ~= ARGV[11] then
  return { 'foreign' }
end
local former = channel.owner
if former ~= '' and former ~= ARGV[1] then
  if ARGV[3] == '1' and num(channel.ownerUntil) > now and former ~= ARGV[2] then return { 'in_use' } end
  if not asking then redis.call('PUBLISH', BASE .. 'down', 'R' .. ARGV[1]) end
end
if asking then return { 'free' } end
local first = channel.connections == ''
redis.call('HSET', META, 'owner', ARGV[1], 'ownerUntil', now + ARGV[4], 'connections', num(channel.connections) + 1)
if first then redis.call('SADD', SEEN, '') end -- so that frame_usual.lua finds it with a TTL
if touch(true) then save() end
-- Connections that come and go must not fill the stream of a runtime that is
-- away; they get further than frames, which are refused and sent again.
if backlog() < 2 then
  add(ARGV[8])
  announce()
end

local recovered, missed = 0, {}
if ARGV[5] == 'at' then
  local found = since(ARGV[6] == '*' and channel.epoch or ARGV[6], ARGV[7])
  if found then recovered, missed = 1, found end
elseif first then
  trim()
  missed = history(1)
end
return { 'attached', channel.epoch, channel.outLast, first and 1 or 0, offer(), channel.chatOff == '' and 1 or 0, recovered, missed }
