-- Messages as they usually come: from the runtime that sent the one before, to an
-- open channel where nothing else is to be done. It comes before channel.lua and
-- send.lua, which tells the arguments, and does the same without what the scripts of
-- a channel share: most of their time goes into having that at hand. Whatever is
-- unusual changes nothing here and is left to send.lua.
do
  local token, state, epoch, before, flow = unpack(redis.call('HMGET', KEYS[1], 'claimToken', 'state', 'epoch', 'outLast', 'flow'))
  local number, count = tonumber(string.match(before or '', '^%d+') or ''), #ARGV - 4
  if number and ARGV[3] == before and ARGV[4] == '' and state == 'open' and (token == ARGV[1] or ARGV[1] == '')
    and number % 128 + count < 128 and not string.find(ARGV[2], '[^-]') then
    local clock = redis.call('TIME')
    local now = clock[1] .. string.sub('00000' .. clock[2], -6, -4)
    local touchAt, dueAt = string.match(flow, '^(%d+) (%d+)')
    if now < touchAt and now < dueAt then -- as texts: one that is shorter or longer begins with 0 or 9
      local outcomes, last = { before }, before
      for i = 1, count do
        last = string.format('%d-%s', number + i, now)
        redis.call('XADD', KEYS[3], last, 'message', ARGV[4 + i])
        outcomes[1 + i] = 'sent'
      end
      redis.call('HSET', KEYS[1], 'outLast', last)
      redis.call('PUBLISH', string.sub(KEYS[1], 1, -5) .. 'down', 'M' .. epoch .. ' ' .. before .. ' ' .. last .. '\n' .. table.concat(ARGV, '\n', 5))
      outcomes[1] = last
      return outcomes
    end
  end
end
