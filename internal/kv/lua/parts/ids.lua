-- Message IDs that were used.

-- Returns which of the IDs are in either set, as a table from ID to true or false.
local function findIDs(set, older, ids)
  if #ids == 0 then return {} end
  local inNewer, inOlder, found = redis.call('SMISMEMBER', set, unpack(ids)), redis.call('SMISMEMBER', older, unpack(ids)), {}
  for i, id in ipairs(ids) do found[id] = inNewer[i] == 1 or inOlder[i] == 1 end
  return found
end

-- Adds IDs to a set. A full set first replaces the older one, whose IDs are dropped.
-- keepAlive must follow: it sets the TTL of the new set.
local function rememberIDs(set, older, max, ids)
  if #ids == 0 then return end
  if redis.call('SCARD', set) >= max then
    redis.call('UNLINK', older)
    redis.call('RENAME', set, older)
    touchAt = 0
  end
  redis.call('SADD', set, unpack(ids))
end
