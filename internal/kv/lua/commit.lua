-- The runtime's position: entries up to it are committed.

local KEPT_ENTRIES  = 1000    -- committed entries that are kept for observers
local KEPT_BYTES    = 1048576 -- of them
local OBSERVER_TIME = 300000  -- ms for which observers can read both streams of an ended channel

-- Commits the position of an entry. The next claim of the channel starts after it. Returns false if the entry is not on
-- the stream. save('committed', position) must follow, and dropEntries.
local function commitPosition(position)
  local number = toNumber(position)
  if number <= committed then return true end
  if position == channel.inLast then
    committedBytes = bytes
  else
    local list = redis.call('XRANGE', IN, math.max(committed + 1, number - number % TOTAL_INTERVAL), position)
    if #list == 0 or list[#list][1] ~= position then return false end
    for _, item in ipairs(list) do
      local entry, total = item[2][2], item[2][4]
      committedBytes = tonumber(total) or committedBytes + #entry
    end
  end
  committed = number
  return true
end

-- Removes committed entries beyond KEPT_ENTRIES and KEPT_BYTES, in steps of TOTAL_INTERVAL entries.
local function dropEntries() -- rare
  readFields('dropped')
  local dropped, droppedBytes = string.match(channel.dropped, '^(%d+) (%d+)$')
  dropped, droppedBytes = tonumber(dropped or 0), tonumber(droppedBytes or 0)
  local first = dropped
  while dropped + TOTAL_INTERVAL < committed
    and (dropped + TOTAL_INTERVAL <= entries - KEPT_ENTRIES or committedBytes - droppedBytes > KEPT_BYTES) do
    dropped = dropped + TOTAL_INTERVAL
    droppedBytes = tonumber(redis.call('XRANGE', IN, dropped, dropped)[1][2][4])
  end
  if dropped == first then return end
  setField('dropped', string.format('%d %d', dropped, droppedBytes))
  redis.call('XTRIM', IN, 'MINID', '~', dropped + 1)
end

-- Saves flow and fields, which are name, value, name, value …, and removes committed entries.
local function saveAndDrop(fields)
  save(unpack(fields))
  if entries >= KEPT_ENTRIES + TOTAL_INTERVAL or committedBytes > KEPT_BYTES then dropEntries() end
end

-- Commits a position before the rest of a script, unless it is empty. Returns the fields for saveAndDrop, which must follow
-- unless there are none; or nil if that needs the script commit: the entry is not on the stream, or the channel has ended.
local function commitFirst(position)
  if position == '' then return {} end
  local before = committed
  if channel.state ~= 'open' or not commitPosition(position) then return nil end
  return committed == before and {} or { 'committed', position }
end

-- Removes everything from an ended channel that is not needed to answer late calls, until RETENTION after the last
-- credential expires, or to read the history. Late callbacks learn that the channel has ended. A callback of a work item
-- that is repeated has its receipt as an argument. META is created anew, because Redis then stores it in half the memory
-- if no value has more than 64 bytes.
local function compact(position) -- rare
  bytes, committedBytes, maxEntries, maxBytes = 0, 0, 1, 1 -- all entries are committed
  save('committed', position)
  local kept = ' state endReason epoch team endpoint flow inLast committed outLast trimmed held historyMessages historyMs'
    .. ' claimedBy claimToken claimUntil claimRequestedAt lostToken lostAt '
  local values, fields, lastDeadline = redis.call('HGETALL', META), {}, now
  for i = 1, #values, 2 do
    local field, value = values[i], values[i + 1]
    local c = #field == DIGEST_LENGTH and parseCredential(value)
    if c then
      c.bodyDigest, c.receipt, lastDeadline = '', '', math.max(lastDeadline, c.deadline)
      append(fields, field, formatCredential(c))
    elseif string.find(kept, ' ' .. field .. ' ', 1, true) then
      append(fields, field, value)
    end
  end
  redis.call('UNLINK', META)
  for first = 1, #fields, BATCH do redis.call('HSET', META, unpack(fields, first, math.min(first + BATCH - 1, #fields))) end
  expireIn(lastDeadline + RETENTION - now)
  redis.call('PEXPIRE', IN, OBSERVER_TIME)
  redis.call('PEXPIRE', OUT, OBSERVER_TIME)
end

-- Commits the runtime's position.
--
-- returns  'committed', or 'drained' if the channel has ended and this was the last entry; 'claim_lost', 'lost', or 'unknown'
--          if the position is not on the stream
--
-- Atomic so that a runtime that has lost its claim cannot move its successor's position. The committed entry and those
-- after it are never removed: a reader that does not find its position knows that the store has lost data.
function commit(token, position)
  runWhenFull()
  loadChannel('state', 'claimToken')
  local rejection = token == '' and 'claim_lost' or claimRejection(token)
  if rejection then return rejection end
  local before = committed
  if not commitPosition(position) then return 'unknown' end
  local drained = channel.state == 'ended' and committed == entries
  if committed > before then
    if now >= touchAt then keepAlive() end
    if drained then compact(position) else saveAndDrop({ 'committed', position }) end
  end
  return drained and 'drained' or 'committed'
end
