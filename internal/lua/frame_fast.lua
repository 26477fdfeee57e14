-- The fast version of frame.lua for the common case: frames of the session's owner, on a
-- channel with text chat on, without backpressure and without expired deadlines. It
-- returns what frame.lua would. In any other case it changes nothing and frame.lua runs.
do
  local owner, chatOff, flow = unpack(redis.call('HMGET', META, 'owner', 'chatOff', 'flow'))
  if owner and owner ~= '' and owner == ARGV[1] and (chatOff or '') == '' and not string.find(ARGV[2], '[^c-]') then
    local touchAt, dueAt, idleAt, entries, bytes, limits, committed, committedBytes, maxEntries, maxBytes = string.match(flow, FLOW_PATTERN)
    entries, bytes, dueAt = tonumber(entries), tonumber(bytes), tonumber(dueAt)
    local count, size = #ARGV[2], 0
    for i = 3 + count, #ARGV do size = size + #ARGV[i] end
    if entries > 0 and entries % SEEN_CHECK_INTERVAL + count < SEEN_CHECK_INTERVAL and now < tonumber(touchAt) and now < dueAt
      and entries - committed + count <= tonumber(maxEntries) and bytes - committedBytes + size <= tonumber(maxBytes) then
      -- There is one outcome for all frames unless one is repeated. The older set is
      -- empty until there are enough entries to fill the newer one.
      local outcomes, checkOlder, newestEntry = { 'appended' }, entries > MAX_SEEN - SEEN_CHECK_INTERVAL, nil
      for i = 1, count do
        local id, entry = ARGV[2 + i], ARGV[2 + count + i]
        if checkOlder and redis.call('SISMEMBER', SEEN_BEFORE, id) == 1 or redis.call('SADD', SEEN, id) == 0 then
          for j = #outcomes + 1, count do outcomes[j] = 'appended' end
          outcomes[i] = 'repeated'
        else
          entries, bytes = entries + 1, bytes + #entry
          newestEntry = string.format(ID_FORMAT, entries, now)
          if entries % TOTAL_INTERVAL > 0 then
            redis.call('XADD', IN, newestEntry, 'entry', entry)
          else
            redis.call('XADD', IN, newestEntry, 'entry', entry, 'total', string.format('%d', bytes))
          end
        end
      end
      if newestEntry then
        redis.call('HSET', META, 'flow', string.format(FLOW_FORMAT, touchAt, dueAt, idleAt, entries, bytes, limits))
        local wait = dueAt < NEVER and string.format('%d', dueAt - now) or ''
        redis.call('PUBLISH', PREFIX .. 'up', 'E' .. newestEntry .. ' ' .. wait)
      end
      return outcomes
    end
  end
end
