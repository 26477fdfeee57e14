-- Does what is due on a channel, and nothing else.
--
-- returns  ms until something is due next, or -1
--
-- Atomic because a work item is over its time or answered, never both.
load()
if channel.flow == '' or dueAt == NEVER then return -1 end
return dueAt - now
