-- The runtime's position.

local KEPT_ENTRIES = 1000 -- committed entries that are kept for observers
local KEPT_BYTES = 1048576 -- of them

-- Commits the position of an entry. The next claim of the channel starts after it. Returns
-- false if the entry is not on the stream. save('committed', position) must follow, and
-- dropEntries.
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

-- Removes committed entries beyond KEPT_ENTRIES and KEPT_BYTES, in steps of TOTAL_INTERVAL
-- entries. The field dropped of meta has the number of the last removed entry and the
-- size of all entries up to it.
local function dropEntries()
  if entries < KEPT_ENTRIES + TOTAL_INTERVAL and committedBytes <= KEPT_BYTES then return end
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

-- Commits a position before the rest of a script, unless it is empty. Returns the fields for
-- saveAndDrop, which must follow unless there are none; or nil if that needs commit.lua: the entry is not on the
-- stream, or the channel has ended. Needs state.
local function commitFirst(position)
  if position == '' then return {} end
  local before = committed
  if channel.state ~= 'open' or not commitPosition(position) then return nil end
  return committed == before and {} or { 'committed', position }
end

-- Saves flow and fields, which are name, value, name, value …, and removes committed entries.
local function saveAndDrop(fields)
  save(unpack(fields))
  dropEntries()
end
