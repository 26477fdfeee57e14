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
if channel.claimToken ~= ARGV[1] then return 'claim_lost' end
if num(ARGV[2]) <= committed then return 'committed' end
local entry = redis.call('XRANGE', IN, ARGV[2], ARGV[2])[1]
if not entry then return 'unknown' end
set('committed', entry[1])
committed, committedBytes = num(entry[1]), entry[2][4]
touch()
save()
redis.call('XTRIM', IN, 'MINID', '~', math.max(1, math.min(committed, entries - ARGV[3] + 1)))
return 'committed'
