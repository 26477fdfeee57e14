-- The usual callback: the first answer to a work item, in its turn, on a channel
-- where nothing else is to be done. It comes before callback.lua, which tells the
-- arguments, and does the same without what the scripts of a channel share: most
-- of their time goes into having that at hand. Whatever is unusual changes nothing
-- here and is left to callback.lua.
do
  local flow, state, epoch, queue = unpack(redis.call('HMGET', KEYS[1], 'flow', 'state', 'epoch', 'queue'))
  local head, tail, parked = string.match(queue or '', '^(%d+) (%d+) (%d+)$')
  if head and state == 'open' and epoch == ARGV[7] and ARGV[4] ~= '' then
    local following = string.format('%d', head + 1)
    local held, after = unpack(redis.call('HMGET', KEYS[6], ARGV[1], following))
    local kind, deadline, id = string.match(held or '', '^awaiting ' .. head .. ' (%S+) (%d+) (%S+) ')
    local clock = redis.call('TIME')
    local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
    local e, b, limits, c, cb, me, mb, touchAt = string.match(flow, '^(%d+) (%d+) ((%d+) (%d+) (%d+) (%d+) (%d+) %d+) %d+$')
    local entries, bytes = tonumber(e), tonumber(b)
    local due = head == tail and 99999999999999 or tonumber(string.match(after or '', '^%d+') or 0)
    if kind == ARGV[2] and (ARGV[3] == '' or ARGV[3] == id) and now < tonumber(deadline) and now < due and now < tonumber(touchAt)
      and entries > 0 and entries - c < tonumber(me) and bytes - cb < tonumber(mb) then
      local key = KEYS[2]
      for i = 9, #ARGV do
        local entry = ARGV[3] ~= '' and ARGV[i] or '{"workItemId":"' .. id .. '",' .. string.sub(ARGV[i], 2)
        entries, bytes = entries + 1, bytes + #entry
        redis.call('XADD', key, string.format('%d-%d', entries, now), 'entry', entry, 'total', string.format('%d', bytes))
      end
      redis.call('HSET', KEYS[6], ARGV[1], 'routed ' .. head .. ' ' .. kind .. ' ' .. deadline .. ' ' .. id .. ' ' .. ARGV[4] .. ' ' .. ARGV[5] .. ' ' .. ARGV[8])
      redis.call('HDEL', KEYS[6], head)
      redis.call('HSET', KEYS[1], 'flow', string.format('%d %d %s %d', entries, bytes, limits, due), 'queue', following .. ' ' .. tail .. ' ' .. parked)
      local topic, wait = string.sub(KEYS[1], 1, -5) .. 'up', head == tail and '' or string.format('%d', due - now)
      redis.call('PUBLISH', topic, #ARGV > 8 and string.format('E%d-%d %s', entries, now, wait) or 'D' .. wait)
      return { 'routed', ARGV[8] }
    end
  end
end
