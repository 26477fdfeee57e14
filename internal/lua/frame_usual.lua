-- Frames as they usually come: on an open channel that has room for all of them and
-- where nothing else is to be done. It comes before frame.lua, which tells the
-- arguments, and does the same without what the scripts of a channel share: most of
-- their time goes into having that at hand. Whatever is unusual changes nothing here
-- and is left to frame.lua.
do
  local owner, chatOff, flow = unpack(redis.call('HMGET', KEYS[1], 'owner', 'chatOff', 'flow'))
  if owner and owner ~= '' and owner == ARGV[1] and (chatOff or '') == '' and not string.find(ARGV[2], '[^c-]') then
    local clock = redis.call('TIME')
    local now = clock[1] .. string.sub('00000' .. clock[2], -6, -4)
    local times, touchAt, dueAt, e, b, limits, c, cb, me, mb = string.match(flow, '^((%d+) (%d+) %d+ )(%d+) (%d+)( (%d+) (%d+) (%d+) (%d+))$')
    local entries, bytes, count, size = tonumber(e), tonumber(b), #ARGV[2], 0
    for i = 3 + count, #ARGV do size = size + #ARGV[i] end
    if entries > 0 and entries % 256 + count < 256 and now < touchAt and now < dueAt -- as texts: one that is shorter or longer begins with 0 or 9
      and entries - c + count <= tonumber(me) and bytes - cb + size <= tonumber(mb) then
      local outcomes, last = { 'appended' }, nil -- of all, unless one was there before
      for i = 1, count do
        local id, entry = ARGV[2 + i], ARGV[2 + count + i]
        -- No id can be in the older set before the younger has had its fill.
        if entries > 4000 and redis.call('SISMEMBER', KEYS[8], id) == 1 or redis.call('SADD', KEYS[4], id) == 0 then
          for j = #outcomes + 1, count do outcomes[j] = 'appended' end
          outcomes[i] = 'repeated'
        else
          entries, bytes = entries + 1, bytes + #entry
          last = string.format('%d-%s', entries, now)
          if entries % 16 > 0 then
            redis.call('XADD', KEYS[2], last, 'entry', entry)
          else
            redis.call('XADD', KEYS[2], last, 'entry', entry, 'total', string.format('%d', bytes))
          end
        end
      end
      if last then
        redis.call('HSET', KEYS[1], 'flow', string.format('%s%d %d%s', times, entries, bytes, limits))
        local wait = dueAt == '99999999999999' and '' or string.format('%d', dueAt - now)
        redis.call('PUBLISH', string.sub(KEYS[1], 1, -5) .. 'up', 'E' .. last .. ' ' .. wait)
      end
      return outcomes
    end
  end
end
