-- Commits the runtime's position: it will not ask for what is before it again.
--
-- ARGV[1]  the claim's token
-- ARGV[2]  the id of the last entry that was dealt with
-- ARGV[3]  entries to keep for onlookers
-- returns  'committed', 'claim_lost', 'lost', or 'unknown' for a position that is not on the stream
--
-- Atomic so that a runtime which has lost its claim cannot move the position of
-- the one that has it. Neither the position, by which a reader sees that the
-- store has lost nothing, nor anything after it is ever trimmed.
load('state', 'claimToken')
if channel.state == '' then return 'lost' end
if ARGV[1] == '' or channel.claimToken ~= ARGV[1] then return 'claim_lost' end
local number = num(ARGV[2])
if number <= committed then return 'committed' end
local list = redis.call('XRANGE', IN, math.max(committed + 1, number - number % 16), ARGV[2])
if #list == 0 or list[#list][1] ~= ARGV[2] then return 'unknown' end
for _, entry in ipairs(list) do committedBytes = tonumber(entry[2][4]) or committedBytes + #entry[2][2] end
committed = number
set('committed', ARGV[2])
touch()
save()
redis.call('XTRIM', IN, 'MINID', '~', math.max(1, math.min(committed, entries - ARGV[3] + 1)))
return 'committed'
