-- Gives a connection's ownership up.
--
-- ARGV[1]  the connection
-- ARGV[2]  the entry that tells the runtime
-- returns  'detached', or 'not_owner' when there was nothing to give up
--
-- Atomic so that a connection that was replaced cannot report its session gone.
load('state', 'owner')
if channel.state ~= 'open' or channel.owner ~= ARGV[1] then return 'not_owner' end
set('owner', '')
if backlog() < 2 then
  add(ARGV[2])
  announce()
end
return 'detached'
