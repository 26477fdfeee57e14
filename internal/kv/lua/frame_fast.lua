-- The fast version of frame.lua for the common case: frames of the session's owner, on a
-- channel that is claimed or was offered, with text chat on, without backpressure and
-- without expired deadlines.
-- It returns what frame.lua would. In any other case it changes nothing and frame.lua runs.
do
  local owner, chatOff, claimUntil, offeredAt, newestEntry, flow =
    unpack(redis.call('HMGET', META, 'owner', 'chatOff', 'claimUntil', 'offeredAt', 'inLast', 'flow'))
  local needsNoOffer = now < (tonumber(claimUntil) or 0) or now - (tonumber(offeredAt) or 0) < OFFER_INTERVAL
  if owner and owner ~= '' and owner == ARGV[1] and (chatOff or '') == '' and needsNoOffer and not string.find(ARGV[4], '[^c-]') then
    local touchAt, dueAt, idleAt, entries, bytes, limits, committed, committedBytes, maxEntries, maxBytes = string.match(flow, FLOW_PATTERN)
    local isNewest = string.match(newestEntry or '', '^%d+') == entries
    entries, bytes, dueAt = tonumber(entries), tonumber(bytes), tonumber(dueAt)
    local count, size = #ARGV[4], 0
    for i = 5 + count, #ARGV do size = size + #ARGV[i] end
    -- Until there are enough entries to fill the newer set, the older one is empty.
    local mayBeFull = entries + count >= MAX_SEEN - 1
    if isNewest and entries > 0 and (not mayBeFull or redis.call('SCARD', SEEN) < MAX_SEEN) and now < tonumber(touchAt) and now < dueAt
      and (ARGV[3] == newestEntry or string.find(ARGV[3], '^%d+%-%d+$') and #redis.call('XRANGE', IN, ARGV[3], ARGV[3]) == 1)
      and entries - committed + count <= tonumber(maxEntries) and bytes - committedBytes + size <= tonumber(maxBytes) then
      -- There is one outcome for all frames unless one is repeated.
      local before, bytesBefore, outcomes = newestEntry, bytes, { '', 'appended' }
      local added = {}
      for i = 1, count do
        local id, entry = ARGV[4 + i], ARGV[4 + count + i]
        if mayBeFull and redis.call('SISMEMBER', SEEN_BEFORE, id) == 1 or redis.call('SADD', SEEN, id) == 0 then
          for j = #outcomes, count do outcomes[1 + j] = 'appended' end
          outcomes[1 + i] = 'repeated'
        else
          entries, bytes, added[#added + 1] = entries + 1, bytes + #entry, entry
          newestEntry = string.format(ID_FORMAT, entries, now)
          if entries % TOTAL_INTERVAL > 0 then
            redis.call('XADD', IN, newestEntry, 'entry', entry)
          else
            redis.call('XADD', IN, newestEntry, 'entry', entry, 'total', string.format('%d', bytes))
          end
        end
      end
      if newestEntry ~= before then
        redis.call('HSET', META, 'inLast', newestEntry, 'flow', string.format(FLOW_FORMAT, touchAt, dueAt, idleAt, entries, bytes, limits))
        local wait = dueAt < NEVER and string.format('%d', dueAt - now) or ''
        local list = bytes - bytesBefore <= MAX_NOTICE and '\n' .. table.concat(added, '\n') or ''
        redis.call('PUBLISH', PREFIX .. 'up', 'E' .. before .. ' ' .. newestEntry .. ' ' .. wait .. list)
      end
      outcomes[1] = newestEntry
      return outcomes
    end
  end
end
