-- Registers a work item whose answer is awaited, or a credential of the channel.
--
-- ARGV[1]  the claim's token; empty: on behalf of whoever has the claim
-- ARGV[2]  the SHA-256 of the credential, in hex
-- ARGV[3]  bot, llm or tool
-- ARGV[4]  work_item or channel
-- ARGV[5]  the work item's id: 1 to 128 of A-Z a-z 0-9 . _ : -
-- ARGV[6]  how long it is awaited, in ms
-- ARGV[7]  the entry for the stream if it is not answered in time
-- returns  {'awaited', its deadline in Unix ms}, also when asked again with the same credential,
--          or {'exists'} another has this id; {'ended'}, {'lost'} or {'claim_lost'}
--
-- Atomic so that items have one order, whoever registers them.
load('state', 'claimToken', 'queue')
local digest, kind, id = ARGV[2], ARGV[3], ARGV[5]
if string.find(digest .. kind .. id, '[^%w._:%-]') then -- entries get the id as it is
  return redis.error_reply('ERR a digest, a kind and an id are made of letters, digits and . _ : -')
end
if channel.state == '' then return { 'lost' } end
if ARGV[1] ~= '' and channel.claimToken ~= ARGV[1] then return { 'claim_lost' } end
local known = redis.call('HGET', WORK, '@' .. id)
if known == digest then return { 'awaited', credential(digest)[4] } end
if known then return { 'exists' } end
if channel.state == 'ended' then return { 'ended' } end

local fresh, deadline, number, before = redis.call('EXISTS', WORK) == 0, now + ARGV[6], 0, dueAt
if ARGV[4] == 'work_item' then
  queue()
  tail = tail + 1
  number = tail
  redis.call('HSET', WORK, number, deadline .. ' ' .. pack({ ARGV[7] }))
  if head == tail then dueAt = deadline end
end
redis.call('HSET', WORK, digest, 'awaiting ' .. number .. ' ' .. kind .. ' ' .. deadline .. ' ' .. id .. '   ', '@' .. id, digest)
redis.call('ZADD', FORGET, deadline + RETENTION, digest, deadline + RETENTION, '@' .. id)
forget()
touch(fresh)
if dueAt == before then save() else announce() end
return { 'awaited', tostring(deadline) }
