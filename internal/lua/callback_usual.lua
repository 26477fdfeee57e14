-- The usual callback: the first answer to a work item, in its turn, on a channel
-- where nothing else is to be done. It comes before callback.lua, which tells the
-- arguments, and does the same without what the scripts of a channel share: most
-- of their time goes into having that at hand. Whatever is unusual changes nothing
-- here and is left to callback.lua.
do
  local flow, state, epoch, queue = unpack(redis.call('HMGET', KEYS[1], 'flow', 'state', 'epoch', 'queue'))
  local head, tail, parked = string.match(queue or '', '^(%d+) (%d+)( %d+)$')
  if head and state == 'open' and epoch == ARGV[7] and ARGV[4] ~= '' then
    local following = string.format('%d', head + 1)
    local held, after = unpack(redis.call('HMGET', KEYS[6], ARGV[1], following))
    local item, kind, deadline, id = string.match(held or '', '^awaiting( ' .. head .. ' (%S+) (%d+) (%S+) )')
    local clock = redis.call('TIME')
    local now = clock[1] .. string.sub('00000' .. clock[2], -6, -4)
    local touchAt, idle, e, b, limits, c, cb, me, mb = string.match(flow, '^(%d+) %d+( %d+ )(%d+) (%d+)( (%d+) (%d+) (%d+) (%d+))$')
    local entries, bytes = tonumber(e), tonumber(b)
    local due = head == tail and '99999999999999' or string.match(after or '', '^%d+') or '0'
    if kind == ARGV[2] and (ARGV[3] == '' or ARGV[3] == id) and now < deadline and now < due and now < touchAt -- as texts: one that is shorter or longer begins with 0 or 9
      and entries > 0 and entries - c < tonumber(me) and bytes - cb < tonumber(mb) then
      local last, brace = '', ARGV[3] ~= '' and '{' or '{"workItemId":"' .. id .. '",'
      for i = 9, #ARGV do
        local entry = brace .. ARGV[i]
        entries, bytes = entries + 1, bytes + #entry
        last = string.format('%d-%s', entries, now)
        if entries % 16 > 0 then
          redis.call('XADD', KEYS[2], last, 'entry', entry)
        else
          redis.call('XADD', KEYS[2], last, 'entry', entry, 'total', string.format('%d', bytes))
        end
      end
      redis.call('HSET', KEYS[6], ARGV[1], 'routed' .. item .. ARGV[4] .. ' ' .. ARGV[5] .. ' ' .. ARGV[8])
      redis.call('HDEL', KEYS[6], head)
      redis.call('HSET', KEYS[1], 'flow', string.format('%s %s%s%d %d%s', touchAt, due, idle, entries, bytes, limits), 'queue', following .. ' ' .. tail .. parked)
      local wait = head == tail and '' or string.format('%d', due - now)
      redis.call('PUBLISH', string.sub(KEYS[1], 1, -5) .. 'up', last ~= '' and 'E' .. last .. ' ' .. wait or 'D' .. wait)
      return { 'routed', ARGV[8] }
    end
  end
end
