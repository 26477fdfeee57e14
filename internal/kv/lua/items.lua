-- uses: inspect credentials
-- Lists the open work items and channel credentials. It changes nothing.
--
-- returns  {ID, kind, number (0 for a channel credential), deadline in Unix ms, 1 if its result is parked, ID …}
inspect('queue')
local list = {}
if channel.state ~= 'open' then return list end
readQueue()
local values = redis.call('HGETALL', WORK)
for i = 1, #values, 2 do
  local digest = string.sub(values[i], 1, 1) == '@' and values[i + 1]
  local c = digest and findCredential(digest)
  local settled = c and c.number > 0 and c.number < head -- its entries are on the stream
  if c and not settled and ((c.state == 'awaiting' or c.state == 'streaming') and now < c.deadline or c.state == 'parked') then
    for _, value in ipairs({ c.id, c.kind, c.number, c.deadline, c.state == 'parked' and 1 or 0 }) do list[#list + 1] = tostring(value) end
  end
end
return list
