-- Detecting that the store has lost data.

local MAX_DIGITS   = 18 -- of either half of a stream ID; Redis rejects numbers above 64 bits
local EPOCH_LENGTH = 26 -- of an epoch without the time of a loss

-- Returns the number of a stream ID, or nil if it is invalid.
local function parseID(id)
  local number, at = string.match(id, '^(%d+)%-(%d+)$')
  if number and #number <= MAX_DIGITS and #at <= MAX_DIGITS then return tonumber(number) end
end

-- Returns whether the store has lost an item of a stream that it acknowledged before, for example in a failover. newest is
-- the ID of the stream's newest item, removed the number up to which items may have been removed on purpose.
local function isLost(stream, id, newest, removed)
  if id == '' or id == newest then return false end
  local number = parseID(id)
  if not number or number >= toNumber(newest) then return true end
  local item = redis.call('XRANGE', stream, number, number)[1]
  if item then return item[1] ~= id end
  return number > removed
end

local function isEntryLost(id) return isLost(IN, id, lastEntryID(), committed) end

-- Needs outLast and trimmed.
local function isMessageLost(id) return isLost(OUT, id, channel.outLast, toNumber(channel.trimmed)) end

-- The argument is that of the scripts. A work item that is settled may be forgotten, see forget. Needs queue.
local function isItemLost(item)
  local number, field = string.match(item or '', '^(%d+)(@.+)$')
  if not number or number ~= '0' and tonumber(number) < head - MAX_SETTLED then return false end
  return (channel[field] or redis.call('HGET', META, field) or '') == ''
end

-- Makes the session's connection run the script renew, which checks what the connection relies on and whether the session
-- should be offered.
local function requestRenewal() -- rare
  redis.call('PUBLISH', PREFIX .. 'down', 'R')
end

-- Returns whether an epoch is of a channel that was opened again, or of a later loss.
local function isLaterEpoch(epoch, known) -- rare
  local opened, at = string.sub(epoch, 1, EPOCH_LENGTH), string.sub(epoch, EPOCH_LENGTH + 1)
  return opened ~= string.sub(known, 1, EPOCH_LENGTH) or toNumber(at) > toNumber(string.sub(known, EPOCH_LENGTH + 1))
end

-- Makes the claim invalid after a loss: the runtime's next call fails with lost. The lease of the claim goes on, so that no
-- other runtime gets the channel meanwhile; lostToken is for the script revoke.
local function reportLossToRuntime() -- rare
  local token = redis.call('HGET', META, 'claimToken') or ''
  if token ~= '' then setField('lostToken', token) end
  redis.call('HSET', META, 'claimToken', '', 'lostAt', now)
  redis.call('PUBLISH', PREFIX .. 'up', 'C') -- the runtime checks its claim
  requestRenewal()
end

-- Starts a new epoch after a loss of acknowledged data and makes the claim invalid, so that both sides learn of it: cursors
-- of the old epoch cannot be resumed. Needs epoch.
local function reportLoss() -- rare
  setField('epoch', string.sub(channel.epoch, 1, EPOCH_LENGTH) .. string.format('%d', now))
  reportLossToRuntime()
end
