-- Applies the expired deadlines of a channel. It does not extend the channel's idle time.
--
-- returns  ms until the next work item times out, or -1 if none is awaited
--
-- Atomic so that a work item either times out or is answered.
loadChannel()
if channel.flow == '' or dueAt == NEVER then return -1 end
return dueAt - now
