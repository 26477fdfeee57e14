-- Offers a session to the runtimes, unless an earlier offer of it still waits for one.
--
-- KEYS[1]  the stream of offers
-- KEYS[2]  ID of the session's newest offer
-- ARGV[1]  the offer, a JSON object
-- ARGV[2]  ms until the session expires; empty: not known
-- ARGV[3]  maximum length of the stream
-- ARGV[4]  1: replace an earlier offer, because an instance may be about to delete it
-- returns  the ID of the offer
--
-- Atomic so that a session has one offer at a time, no matter how often it is offered: a
-- runtime that returns after a long outage finds one offer per session.
local OFFERS, NEWEST = unpack(KEYS)
local MAX_AGE    = 86400000 -- ms; no session lives longer
local KEEP       = 600000   -- ms for which the newest ID is kept; longer than the interval between offers
local DROP_BATCH = 64       -- expired offers deleted per call, more than a call adds

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local id = redis.call('GET', NEWEST)
if not id or ARGV[4] == '1' or #redis.call('XRANGE', OFFERS, id, id) == 0 then
  if id then redis.call('XDEL', OFFERS, id) end
  for _ = 1, DROP_BATCH do
    local first = redis.call('XRANGE', OFFERS, '-', '+', 'COUNT', 1)[1]
    local expiresAt = first and first[2][3] == 'expiresAt' and tonumber(first[2][4])
    if not expiresAt or expiresAt > now then break end
    redis.call('XDEL', OFFERS, first[1])
  end
  redis.call('XTRIM', OFFERS, 'MINID', '~', string.format('%d', now - MAX_AGE))
  if ARGV[2] == '' then
    id = redis.call('XADD', OFFERS, 'MAXLEN', '~', ARGV[3], '*', 'offer', ARGV[1])
  else
    id = redis.call('XADD', OFFERS, 'MAXLEN', '~', ARGV[3], '*', 'offer', ARGV[1], 'expiresAt', string.format('%d', now + ARGV[2]))
  end
end
redis.call('SET', NEWEST, id, 'PX', KEEP)
return id
