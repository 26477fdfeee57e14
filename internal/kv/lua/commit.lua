-- uses: commit
-- Commits the runtime's position. The next claim of the channel starts after it.
--
-- ARGV[1]  token of the claim
-- ARGV[2]  ID of the last processed entry
-- returns  'committed', or 'drained' if the channel has ended and this was the last entry; 'claim_lost', 'lost', or 'unknown' if the position is not on the stream
--
-- Atomic so that a runtime that has lost its claim cannot move its successor's
-- position. The committed entry and those after it are never removed: a reader that
-- does not find its position knows that the store has lost data.
local DIGEST_LENGTH = 64 -- of a credential, in hex
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
local rejection = claimRejection(ARGV[1])
if rejection then return rejection end
local function outcome() return channel.state == 'ended' and committed == entries and 'drained' or 'committed' end
local before = committed
if not commitPosition(ARGV[2]) then return 'unknown' end
if committed == before then return outcome() end
keepAlive()
save('committed', ARGV[2])
if channel.state == 'ended' and committed == entries then compact() else dropEntries() end
return outcome()
