-- uses: inspect owner
-- Checks whether connect.lua would make a new connection the owner of a session. It changes nothing.
--
-- ARGV[1]  ID of the connection that it resumes; empty: none
-- ARGV[2]  1: reject while another connection owns the session
-- ARGV[3]  team ID
-- ARGV[4]  endpoint ID
-- returns  'admitted', or why it would be rejected: in_use, ended or foreign (another team or endpoint)
inspect('team', 'endpoint', 'owner', 'ownerUntil')
return connectionRejection('', ARGV[1], ARGV[2], ARGV[3], ARGV[4]) or 'admitted'
