-- Trimming the history. Parts that use it: history.

-- The history is trimmed once per TRIM_INTERVAL messages, and whenever it is read.
local TRIM_INTERVAL = 128

-- Removes messages that exceed the history's maximum length or age. Needs outLast.
local function trimHistory()
  readFields('historyMessages', 'historyMs', 'trimmed')
  local function oldestFrom(number) return redis.call('XRANGE', OUT, number, '+', 'COUNT', 1)[1] end
  local from = math.max(1, toNumber(channel.outLast) - toNumber(channel.historyMessages) + 1)
  local oldest = oldestFrom(from)
  while oldest and now - string.match(oldest[1], '%d+$') > toNumber(channel.historyMs) do
    from = toNumber(oldest[1]) + 1
    oldest = oldestFrom(from)
  end
  local lastTrimmed = redis.call('XREVRANGE', OUT, from - 1, '-', 'COUNT', 1)[1]
  if not lastTrimmed then return end
  redis.call('XTRIM', OUT, 'MINID', from)
  setField('trimmed', lastTrimmed[1])
end
