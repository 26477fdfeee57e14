-- Deletes expired offers, so that a runtime need not read each of them.
--
-- KEYS[1]  the stream of offers
-- ARGV[1]  ID of the first offer to check
-- ARGV[2]  maximum number of offers to check
-- returns  {number of deleted offers, ID of the last offer that was checked, 1 if the first one was deleted}
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local expired, last = {}, ARGV[1]
for _, offer in ipairs(redis.call('XRANGE', KEYS[1], ARGV[1], '+', 'COUNT', ARGV[2])) do
  local field, value = offer[2][3], offer[2][4]
  if field == 'expiresAt' and (tonumber(value) or now) <= now then expired[#expired + 1] = offer[1] end
  last = offer[1]
end
if #expired > 0 then
  redis.call('XDEL', KEYS[1], unpack(expired))
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
    redis.call('XACK', KEYS[1], group[2], unpack(expired)) -- group[1] is 'name'
  end
end
return { #expired, last, expired[1] == ARGV[1] and 1 or 0 }
