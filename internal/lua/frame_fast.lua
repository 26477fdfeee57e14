-- The fast version of frame.lua for the common case: frames of the session's owner,
-- on a channel with text chat on, with room for all of them, and where nothing is due.
-- It comes between base.lua and channel.lua and returns what frame.lua would. In any
-- other case it changes nothing and frame.lua runs.
do
  local owner, chatOff, flow = unpack(redis.call('HMGET', META, 'owner', 'chatOff', 'flow'))
  if owner and owner ~= '' and owner == ARGV[1] and (chatOff or '') == '' and not string.find(ARGV[2], '[^c-]') then
    parseFlow(flow)
    local count, size = #ARGV[2], 0
    for i = 3 + count, #ARGV do size = size + #ARGV[i] end
    if entries > 0 and entries % FRAME_CLEANUP_INTERVAL + count < FRAME_CLEANUP_INTERVAL and now < touchAt and now < dueAt
      and entries - committed + count <= maxEntries and bytes - committedBytes + size <= maxBytes then
      -- One word stands for all frames unless one is repeated. No ID can be in the
      -- older set before there were enough entries to fill the newer one.
      local outcomes, checkOlder = { 'appended' }, entries > MAX_SEEN - FRAME_CLEANUP_INTERVAL
      for i = 1, count do
        local id = ARGV[2 + i]
        if checkOlder and redis.call('SISMEMBER', SEEN_BEFORE, id) == 1 or redis.call('SADD', SEEN, id) == 0 then
          for j = #outcomes + 1, count do outcomes[j] = 'appended' end
          outcomes[i] = 'repeated'
        else
          addEntry(ARGV[2 + count + i])
        end
      end
      if newestEntry then
        save()
        notify()
      end
      return outcomes
    end
  end
end
