-- The fast version of callback.lua for the common case: the first callback for the
-- work item whose turn it is, on an open channel where nothing else is due. It comes
-- between base.lua and channel.lua and returns what callback.lua would. In any other
-- case it changes nothing and callback.lua runs.
do
  local flow, state, epoch, queue = unpack(redis.call('HMGET', META, 'flow', 'state', 'epoch', 'queue'))
  if state == 'open' and epoch == ARGV[7] and queue then
    parseQueue(queue)
    parseFlow(flow)
    local last = head == tail
    local record, following = unpack(redis.call('HMGET', WORK, ARGV[1], head + 1))
    local kind, deadline, id = string.match(record or '', '^awaiting ' .. head .. ' (%S+) (%d+) (%S+) ')
    local nextDueAt = last and NEVER or tonumber(string.match(following or '', '^%d+') or 0)
    if kind == ARGV[2] and (ARGV[3] == '' or ARGV[3] == id) and now < tonumber(deadline) and now < nextDueAt and now < touchAt
      and entries > 0 and entries - committed < maxEntries and bytes - committedBytes < maxBytes then
      for i = 9, #ARGV do addEntry(ARGV[3] == '' and withWorkItemID(ARGV[i], id) or ARGV[i]) end
      redis.call('HSET', WORK, ARGV[1], formatCredential('routed', head, kind, deadline, id, ARGV[4], ARGV[5], ARGV[8]))
      redis.call('HDEL', WORK, head)
      head, dueAt = head + 1, nextDueAt
      save()
      notify()
      return { 'routed', ARGV[8] }
    end
    head = nil -- only scripts that read the queue themselves write it
  end
end
