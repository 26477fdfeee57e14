-- Reading a channel without changing it.

-- Reads fields of the channel and changes nothing. The state of a channel whose idle
-- time has expired is ended. channel.state is '' if the channel does not exist.
local function inspect(...)
  readFields('flow', 'state', ...)
  if channel.flow == '' then return end
  parseFlow()
  if now > idleAt then channel.state = 'ended' end
end
