-- uses: credentials loss commit
-- Registers a work item, or a channel credential.
--
-- ARGV[1]  token of the claim; empty: act for the runtime that has the claim
-- ARGV[2]  SHA-256 of the credential, in hex
-- ARGV[3]  kind: bot, llm or tool
-- ARGV[4]  scope: item or channel
-- ARGV[5]  work item ID: 1 to 128 characters of A-Z a-z 0-9 . _ : -
-- ARGV[6]  time to wait for the result, in ms: 1 to 86400000 (24 h)
-- ARGV[7]  entry to add to the stream when the work item times out
-- ARGV[8]  ID of the newest work item that is awaited and not expired; may be empty
-- ARGV[9]  position to commit before; empty: none
-- returns  {'awaited', deadline in Unix ms}, also if called again with the same credential;
--          {'exists'} if another work item has this ID or credential; {'ended'}, {'not_found'}, {'claim_lost'}, {'unknown'} if ARGV[9] needs commit.lua, or {'lost'}, also if the work item in ARGV[8] is lost
--
-- Atomic so that work items of several processes have one order.
local digest, kind, scope, id, ttl = ARGV[2], ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6])
loadChannel('state', 'claimToken', 'queue', 'epoch')
local rejection = claimRejection(ARGV[1])
if rejection then return { rejection } end
local changes = commitFirst(ARGV[9] or '')
if not changes then return { 'unknown' } end
local newest = ARGV[8] or ''
local known, used, newestKnown = unpack(redis.call('HMGET', WORK, '@' .. id, digest, '@' .. newest))
if channel.state == 'open' and newest ~= '' and not newestKnown then
  reportLoss()
  return { 'lost' }
end
if known == digest then
  if #changes > 0 then saveAndDrop(changes) end -- otherwise it works while the store is full
  return { 'awaited', tostring(findCredential(digest).deadline) }
end
if known or used then return { 'exists' } end
if channel.state == 'ended' then return { 'ended' } end

local deadline, number, oldDueAt = now + ttl, 0, dueAt
local fields = { '@' .. id, digest }
if scope == 'item' then
  readQueue()
  tail = tail + 1
  number = tail
  fields[3], fields[4] = number, deadline .. '@' .. id .. ' ' .. packEntries({ ARGV[7] })
  if head == tail then dueAt = deadline end
end
local credential = { state = 'awaiting', number = number, kind = kind, deadline = deadline, id = id, callbackID = '', bodyDigest = '', receipt = '' }
redis.call('HSET', WORK, digest, formatCredential(credential), unpack(fields))
redis.call('ZADD', FORGET, deadline + RETENTION, digest, deadline + RETENTION, '@' .. id)
if number % FORGET_INTERVAL == 0 then forgetExpired() end
keepAlive()
saveAndDrop(changes)
if dueAt ~= oldDueAt then notify() end
return { 'awaited', tostring(deadline) }
