-- Applies the expired deadlines of a channel. It does not extend the channel's idle time.
--
-- returns  ms until the next work item times out; -1 if none is awaited; -2 if the channel has ended and all
--          entries are committed
--
-- Atomic so that a work item either times out or is answered.
runWhenFull()
loadChannel('state')
if channel.state == 'ended' and committed == entries then return -2 end
if channel.flow == '' or dueAt == NEVER then return -1 end
return dueAt - now
