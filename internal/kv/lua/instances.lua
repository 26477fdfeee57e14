-- What instances share: leases, connections of runtimes, fingerprints, offers of sessions, and rate limits. keys.go describes
-- the keys. A full store accepts a command that adds data only after one that needs no memory.

local OFFERS        = KEYS[1]
local NEWEST_OFFER  = KEYS[2]
local MAX_OFFER_AGE = 86400000 -- ms; no session lives longer
local KEEP_NEWEST   = 600000   -- ms for which the newest ID is kept; longer than the interval between offers
local REPLACED_TIME = 600000   -- ms; longer than an instance takes to notice the end of a connection
local DROP_BATCH    = 64       -- expired offers deleted per call, more than a call adds

-- Renews or releases a lease. Atomic so that only its holder does.
--
-- KEYS[1]  the lease: a string, the ID of the holder
-- holder   its ID
-- ttl      new lease time in ms; 0 releases the lease, because an expired key is deleted at once
-- returns  1, or 0 if the holder does not have the lease
function lease(holder, ttl)
  if redis.call('GET', KEYS[1]) ~= holder then return 0 end
  return redis.call('PEXPIRE', KEYS[1], ttl)
end

-- Extends the lifetimes of the connections of an instance, and finds those that expired.
--
-- KEYS[1]   connection IDs
-- max       maximum number of expired connections to return
-- ARGV[2…]  connection ID, its lifetime in ms, connection ID …
-- returns  {{connections that were not in the set}, {expired connections}}
function connections(max)
  local missing = {}
  redis.call('ZREM', KEYS[1], '') -- for a full store
  for i = 2, #ARGV, 2 do
    if redis.call('ZADD', KEYS[1], string.format('%d', now + ARGV[i + 1]), ARGV[i]) == 1 then missing[#missing + 1] = ARGV[i] end
  end
  return { missing, redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, max) }
end

-- KEYS[1]  connection IDs
-- returns  1 if the connection has expired or is unknown, otherwise 0
function is_expired(connection)
  return tonumber(redis.call('ZSCORE', KEYS[1], connection) or 0) <= now and 1 or 0
end

-- Records that a connection of a runtime is about to claim channels.
--
-- KEYS[1]   the claims that the connection may have, each the ID of a channel, a slash and a secret; and replaced if the
--           runtime has another connection instead
-- ARGV[1…]  claims
-- returns  1 if the connection is replaced, otherwise 0. A replaced one is forgotten after REPLACED_TIME
function claims()
  redis.call('SREM', KEYS[1], '') -- for a full store
  for i = 1, #ARGV do redis.call('SADD', KEYS[1], ARGV[i]) end
  local replaced = redis.call('SISMEMBER', KEYS[1], 'replaced')
  if replaced == 1 then redis.call('PEXPIRE', KEYS[1], REPLACED_TIME) end
  return replaced
end

-- Publishes the fingerprint of an instance's JWT secret and lists those of all instances. Atomic so that an expired
-- fingerprint is never listed.
--
-- KEYS[1]  the fingerprints
-- own      the fingerprint of this instance; empty to publish nothing
-- ttl      ms until it expires
-- returns  the fingerprints that have not expired
function fingerprint(own, ttl)
  if own ~= '' then
    redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
    redis.call('ZADD', KEYS[1], string.format('%.0f', now + ttl), own)
    redis.call('PEXPIRE', KEYS[1], ttl)
  end
  return redis.call('ZRANGEBYSCORE', KEYS[1], string.format('(%.0f', now), '+inf')
end

-- Offers a session to the runtimes, unless an earlier offer of it still waits for one.
--
-- KEYS       the stream of offers, and the ID of the session's newest offer
-- text       the offer, a JSON object
-- ttl        ms until the session expires; empty: not known
-- maxLength  of the stream
-- replace    1: replace an earlier offer, because an instance may be about to delete it
-- returns  the ID of the offer
--
-- Atomic so that a session has one offer at a time, no matter how often it is offered: a runtime that returns after a long
-- outage finds one offer per session.
function offer(text, ttl, maxLength, replace)
  local id = redis.call('GET', NEWEST_OFFER)
  if not id or replace == '1' or #redis.call('XRANGE', OFFERS, id, id) == 0 then
    if id then redis.call('XDEL', OFFERS, id) end
    for _ = 1, DROP_BATCH do
      local first = redis.call('XRANGE', OFFERS, '-', '+', 'COUNT', 1)[1]
      local expiresAt = first and tonumber(first[2][4] or '') -- not known: nil
      if not expiresAt or expiresAt > now then break end
      redis.call('XDEL', OFFERS, first[1])
    end
    redis.call('XTRIM', OFFERS, 'MINID', '~', string.format('%d', now - MAX_OFFER_AGE))
    local fields = { 'offer', text }
    if ttl ~= '' then append(fields, 'expiresAt', string.format('%d', now + ttl)) end
    id = redis.call('XADD', OFFERS, 'MAXLEN', '~', maxLength, '*', unpack(fields))
  end
  redis.call('SET', NEWEST_OFFER, id, 'PX', KEEP_NEWEST)
  return id
end

-- Grants permits of a rate-limit window.
--
-- KEYS[1]    number of permits granted in the window
-- requested  permits
-- permits    per window
-- window     its length in ms
-- returns  {permits granted, permits left, ms until the window ends}
--
-- Atomic so that two instances cannot exceed the limit together, and so that a count always has a TTL, which ends the window.
function grant(requested, permits, window)
  local left = permits - (redis.call('GET', KEYS[1]) or 0)
  local granted = math.max(0, math.min(tonumber(requested), left))
  local ttl = redis.call('PTTL', KEYS[1])
  local isNew = ttl < 0 or ttl > tonumber(window) -- a new window, or its length was reduced
  if isNew then ttl = tonumber(window) end
  redis.call('PEXPIRE', KEYS[1], ttl) -- for a full store
  if granted > 0 then redis.call('INCRBY', KEYS[1], granted) end
  if isNew then redis.call('PEXPIRE', KEYS[1], ttl) end
  return { granted, math.max(0, left - granted), ttl }
end

-- Saves the rate limits and announces the change to every instance. Lower limits can stop the client that fills a store.
--
-- KEYS[1]  the limits
-- value    the new value, JSON
-- topic    of announcements
-- subject  of this one
-- former   the value to replace; empty if there is none or it is not a string
-- returns  1 if saved, 0 if the value has changed in the meantime
--
-- Atomic so that limits are never saved without an announcement, and so that concurrent changes do not overwrite each other.
function save_limits(value, topic, subject, former)
  local kind = redis.call('TYPE', KEYS[1]).ok
  local current = kind == 'string' and redis.call('GET', KEYS[1]) or ''
  if current ~= former then
    return current == value and 1 or 0 -- equal if the script is retried after a lost reply
  end
  redis.call('PERSIST', KEYS[1]) -- for a full store
  redis.call('SET', KEYS[1], value)
  redis.call('PUBLISH', topic, subject)
  return 1
end
