-- Checks whether connect.lua would let a new connection own a session. It changes nothing.
--
-- ARGV[1]  the connection that it continues; empty: none
-- ARGV[2]  1: refuse while another connection's lease has not expired
-- ARGV[3]  team
-- ARGV[4]  endpoint
-- returns  'admitted', or why it would be refused: in_use, ended or foreign
inspect('team', 'endpoint', 'owner', 'ownerUntil')
return connectionRefusal('', ARGV[1], ARGV[2], ARGV[3], ARGV[4]) or 'admitted'
