-- Work items and their credentials.

-- Expired fields of work are deleted with every FORGET_INTERVAL-th item, and with every channel
-- credential and its uses, at most FORGET_BATCH: more than are added meanwhile.
local FORGET_INTERVAL, FORGET_BATCH = 8, 32

local MAX_USES = 1024 -- of channel credentials that are remembered

local function packEntries(list)
  local packed = {}
  for i, entry in ipairs(list) do packed[i] = #entry .. ':' .. entry end
  return table.concat(packed)
end

-- Returns the credential with a digest, or nil.
local function findCredential(digest)
  local state, number, kind, deadline, id, callbackID, bodyDigest, receipt =
    string.match(redis.call('HGET', WORK, digest) or '', '^(%S+) (%d+) (%S+) (%d+) (%S+) (%S*) (%S*) (.*)$')
  if not state then return nil end
  return { state = state, number = tonumber(number), kind = kind, deadline = tonumber(deadline), id = id,
    callbackID = callbackID, bodyDigest = bodyDigest, receipt = receipt }
end

local function formatCredential(c)
  return table.concat({ c.state, c.number, c.kind, c.deadline, c.id, c.callbackID, c.bodyDigest, c.receipt }, ' ')
end

-- Returns the credential with a digest if it is for this kind of callback and, unless
-- empty, this work item; otherwise nil.
local function credentialFor(digest, kind, workItemID)
  local c = channel.state ~= '' and findCredential(digest)
  if c and c.kind == kind and (workItemID == '' or workItemID == c.id) then return c end
end

-- Returns the time from which a credential is invalid. A settled one answers repeated callbacks
-- for a while.
local function expiryOf(c)
  return c.deadline + ((c.state == 'streaming' or c.state == 'awaiting') and 0 or RETENTION)
end

-- Returns why a credential cannot be used: invalid, ended, cancelled, consumed, or streaming
-- if a streamed answer has begun. It returns nil if it can. Needs state and queue.
local function credentialRejection(c)
  local streaming = c.state == 'streaming'
  if now >= expiryOf(c) then return 'invalid' end
  if channel.state == 'ended' then return 'ended' end
  if c.state == 'cancelled' then return 'cancelled' end
  if c.callbackID ~= '' and not streaming then return 'consumed' end
  readQueue()
  if c.number > 0 and c.number < head then return 'invalid' end -- it timed out before the store's clock was set back
  if streaming then return 'streaming' end
end

-- Deletes a few expired fields of work.
local function forgetExpired()
  local fields = redis.call('ZRANGEBYSCORE', FORGET, '-inf', now, 'LIMIT', 0, FORGET_BATCH)
  if #fields == 0 then return end
  redis.call('HDEL', WORK, unpack(fields))
  redis.call('ZREM', FORGET, unpack(fields))
end
