-- The fast version of callback.lua for the common case: the first callback, with entries, for
-- the first unsettled work item, on an open and claimed channel without expired deadlines. It
-- returns what callback.lua would. In any other case it changes nothing and callback.lua
-- runs.
do
  local flow, inLast, state, epoch, queue, claimUntil = unpack(redis.call('HMGET', META, 'flow', 'inLast', 'state', 'epoch', 'queue', 'claimUntil'))
  local claimed = now < tonumber(claimUntil or 0)
  if ARGV[10] and inLast and state == 'open' and epoch == ARGV[7] and queue and (claimed or (redis.call('HGET', META, 'offer') or '') == '') then
    local head, tail, parked = string.match(queue, QUEUE_PATTERN)
    local touchAt, _, idleAt, entries, bytes, limits, committed, committedBytes, maxEntries, maxBytes = string.match(flow, FLOW_PATTERN)
    entries, bytes = tonumber(entries), tonumber(bytes)
    local nextHead = string.format('%d', head + 1)
    local record, following = unpack(redis.call('HMGET', WORK, ARGV[1], nextHead))
    local item, kind, deadline, id = string.match(record or '', '^awaiting( ' .. head .. ' (%S+) (%d+) (%S+) )')
    local nextDueAt = head == tail and NEVER or tonumber(string.match(following or '', '^%d+') or 0)
    if kind == ARGV[2] and (ARGV[3] == '' or ARGV[3] == id) and now < tonumber(deadline) and now < nextDueAt and now < tonumber(touchAt)
      and entries - committed < tonumber(maxEntries) and bytes - committedBytes < tonumber(maxBytes) then
      local newestEntry, bytesBefore, added, prefix = '', bytes, {}, ARGV[3] == '' and '{"workItemId":"' .. id .. '",'
      for i = 10, #ARGV do
        local entry = prefix and prefix .. string.sub(ARGV[i], 2) or ARGV[i]
        entries, bytes, added[#added + 1] = entries + 1, bytes + #entry, entry
        newestEntry = string.format(ID_FORMAT, entries, now)
        if entries % TOTAL_INTERVAL > 0 then
          redis.call('XADD', IN, newestEntry, 'entry', entry)
        else
          redis.call('XADD', IN, newestEntry, 'entry', entry, 'total', string.format('%d', bytes))
        end
      end
      redis.call('HSET', WORK, ARGV[1], 'routed' .. item .. ARGV[4] .. ' ' .. ARGV[5] .. ' ' .. ARGV[8])
      redis.call('HDEL', WORK, head)
      redis.call('HSET', META, 'queue', string.format(QUEUE_FORMAT, nextHead, tail, parked),
        'inLast', newestEntry, 'flow', string.format(FLOW_FORMAT, touchAt, nextDueAt, idleAt, entries, bytes, limits))
      local wait = nextDueAt < NEVER and string.format('%d', nextDueAt - now) or ''
      local list = bytes - bytesBefore <= MAX_NOTICE and '\n' .. table.concat(added, '\n') or ''
      redis.call('PUBLISH', PREFIX .. 'up', 'E' .. inLast .. ' ' .. newestEntry .. ' ' .. wait .. list)
      return { 'routed', ARGV[8], '', '' }
    end
  end
end
