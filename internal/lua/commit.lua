-- Commits the runtime's position. The next claim of the channel starts after it.
--
-- ARGV[1]  token of the claim
-- ARGV[2]  ID of the last processed entry
-- ARGV[3]  committed entries to keep for observers
-- returns  'committed', 'claim_lost', 'lost', or 'unknown' if the position is not on the stream
--
-- Atomic so that a runtime that has lost its claim cannot move its successor's
-- position. The committed entry and those after it are never trimmed: a reader that
-- does not find its position knows that the store has lost data.
load('state', 'claimToken')
if channel.state == '' then return 'lost' end
if ARGV[1] == '' or channel.claimToken ~= ARGV[1] then return 'claim_lost' end
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
redis.call('XTRIM', IN, 'MINID', '~', math.max(1, math.min(committed, entries - ARGV[3] + 1)))
return 'committed'
