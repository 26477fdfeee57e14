-- Takes a callback: checks its credential, consumes it, and puts its entries on
-- the runtime's stream, or parks them until their turn.
--
-- ARGV[1]  the SHA-256 of the credential, in hex
-- ARGV[2]  the kind its route is for
-- ARGV[3]  the work item its path names, or empty; then its id is put into every entry
-- ARGV[4]  the callback's id; empty: judge the credential and change nothing
-- ARGV[5]  digest of the body
-- ARGV[6]  1: the body has something to tell it by
-- ARGV[7]  the epoch of the channel that was decided for
-- ARGV[8]  the receipt
-- ARGV[9…] the entries, without the brace they begin with
-- returns  {verdict, the first receipt if there was one, the item's number if it was parked}, where verdict is
--          routed, parked, invalid, ended, consumed, duplicate, cancelled, stale, backpressure or good
--
-- Atomic because of simultaneous callbacks with one credential one is routed,
-- and because a credential is consumed and its entries kept, or neither. A second
-- run with the same callback id answers what the first one did.
load('state', 'epoch', 'queue')
local digest, callback, body = ARGV[1], ARGV[4], ARGV[5]
local held = channel.state ~= '' and credential(digest)
if not held then return { 'invalid' } end
local state, number, kind, deadline, id, by, of, receipt = unpack(held)
number, deadline = tonumber(number), tonumber(deadline)
if kind ~= ARGV[2] or ARGV[3] ~= '' and ARGV[3] ~= id then return { 'invalid' } end

-- The channel's credential is used more than once: what is kept of each use has
-- a field of its own.
local record, ownTurn = digest, number == 0
if ownTurn and callback ~= '' then
  record = digest .. ' ' .. (ARGV[6] == '1' and body or callback)
  local use = redis.call('HGET', WORK, record)
  if use then by, of, receipt = string.match(use, '^(%S+) (%S*) (.*)$') end
end
local answered = by ~= ''

if answered and by == callback then return { ownTurn and 'routed' or state, receipt, state == 'parked' and tostring(number) or nil } end
if now >= deadline + (state ~= 'awaiting' and RETENTION or 0) then return { 'invalid' } end
if channel.state == 'ended' then return { 'ended' } end
if state == 'cancelled' then return { 'cancelled' } end
if answered then return { of == body and 'duplicate' or 'consumed', receipt } end
queue()
if not ownTurn and number < head then return { 'invalid' } end -- it was given up, and then the clock went back
if callback == '' then return { 'good' } end
if channel.epoch ~= ARGV[7] then return { 'stale' } end
local turn = ownTurn or number == head
if backlog(turn and 0 or parked) >= 1 then return { 'backpressure' } end

local list, brace = {}, ARGV[3] ~= '' and '{' or '{"workItemId":"' .. id .. '",'
for i = 9, #ARGV do list[#list + 1] = brace .. ARGV[i] end
local verdict = turn and 'routed' or 'parked'
if ownTurn then
  redis.call('HSET', WORK, record, callback .. ' ' .. body .. ' ' .. ARGV[8])
  -- Without anything to tell the body by, it is for a lost answer alone.
  redis.call('ZADD', FORGET, ARGV[6] == '1' and deadline or math.min(deadline, now + 600000), record)
  forget()
else
  redis.call('HSET', WORK, digest, table.concat({ verdict, number, kind, deadline, id, callback, body, ARGV[8] }, ' '))
end
if not turn then
  local packed = pack(list)
  parked = parked + #packed
  redis.call('HSET', WORK, number, '0 ' .. packed)
  touch()
  save()
  return { verdict, ARGV[8], tostring(number) }
end
for _, entry in ipairs(list) do add(entry) end
if not ownTurn then
  redis.call('HDEL', WORK, number)
  head = head + 1
  advance()
end
announce()
return { verdict, ARGV[8] }
