-- Commits the runtime's position. The next claim of the channel starts after it.
--
-- ARGV[1]  token of the claim
-- ARGV[2]  ID of the last processed entry
-- ARGV[3]  committed entries to keep for observers
-- returns  'committed', 'claim_lost', 'lost', or 'unknown' if the position is not on the stream
--
-- Atomic so that a runtime that has lost its claim cannot move its successor's
-- position. The committed entry and those after it are never removed: a reader that
-- does not find its position knows that the store has lost data.
local KEPT_BYTES = 1048576 -- of committed entries

-- Removes committed entries beyond KEPT_BYTES and ARGV[3], in steps of TOTAL_INTERVAL
-- entries. The field dropped of meta has the number of the last removed entry and the
-- size of all entries up to it.
local function dropEntries()
  readFields('dropped')
  local dropped, droppedBytes = string.match(channel.dropped, '^(%d+) (%d+)$')
  dropped, droppedBytes = tonumber(dropped or 0), tonumber(droppedBytes or 0)
  local first = dropped
  while dropped + TOTAL_INTERVAL < committed
    and (dropped + TOTAL_INTERVAL <= entries - ARGV[3] or committedBytes - droppedBytes > KEPT_BYTES) do
    dropped = dropped + TOTAL_INTERVAL
    droppedBytes = tonumber(redis.call('XRANGE', IN, dropped, dropped)[1][2][4])
  end
  if dropped == first then return end
  setField('dropped', string.format('%d %d', dropped, droppedBytes))
  redis.call('XTRIM', IN, 'MINID', '~', dropped + 1)
end

local OBSERVER_TIME = 300000 -- ms for which observers can read both streams of an ended channel

-- Removes everything from an ended channel that is not needed to answer late callbacks.
-- That is kept until RETENTION after the last credential expires.
local function compact()
  redis.call('ZREM', FORGET, '') -- the empty member has the highest score
  local forgetAt = redis.call('ZRANGE', FORGET, -1, -1, 'WITHSCORES')[2]
  expireIn(math.max(RETENTION, (tonumber(forgetAt) or 0) - now))
  redis.call('PEXPIRE', IN, OBSERVER_TIME)
  redis.call('PEXPIRE', OUT, OBSERVER_TIME)
  redis.call('UNLINK', SEEN, SENT, FORGET, SEEN_BEFORE, SENT_BEFORE)
  redis.call('HDEL', META, 'profile', 'offer', 'outLast', 'trimmed', 'dropped', 'queue', 'uses')
  for _, field in ipairs(redis.call('HKEYS', WORK)) do
    if not string.find(field, '^%x+$') or #field < DIGEST_LENGTH then redis.call('HDEL', WORK, field) end
  end
end

runWhenFull()
loadChannel('state', 'claimToken')
if ARGV[1] == '' then return 'claim_lost' end
local refusal = claimRefusal(ARGV[1])
if refusal then return refusal end
local number = toNumber(ARGV[2])
if number <= committed then return 'committed' end
local list = redis.call('XRANGE', IN, math.max(committed + 1, number - number % TOTAL_INTERVAL), ARGV[2])
if #list == 0 or list[#list][1] ~= ARGV[2] then return 'unknown' end
for _, item in ipairs(list) do
  local entry, total = item[2][2], item[2][4]
  committedBytes = tonumber(total) or committedBytes + #entry
end
committed = number
setField('committed', ARGV[2])
keepAlive()
save()
if channel.state == 'ended' and committed == entries then compact() else dropEntries() end
return 'committed'
