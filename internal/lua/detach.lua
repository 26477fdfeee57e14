-- Releases a connection's ownership of its session.
--
-- ARGV[1]  ID of the connection
-- ARGV[2]  entry that reports the disconnect to the runtime
-- returns  'detached', or 'not_owner' if the connection does not own the session
--
-- Atomic so that a replaced connection cannot report the session as disconnected.
load('state', 'owner')
if channel.state ~= 'open' or channel.owner ~= ARGV[1] then return 'not_owner' end
setField('owner', '')
addSessionEvent(ARGV[2])
return 'detached'
