-- Checks a credential without consuming it. It changes nothing.
--
-- ARGV[1]  SHA-256 of the credential, in hex
-- ARGV[2]  kind of the callback's route
-- ARGV[3]  work item ID from the path; empty: the path has none
-- returns  'usable', or why a callback would be rejected: invalid, ended, cancelled or consumed
inspect('queue')
local c = credentialFor(ARGV[1], ARGV[2], ARGV[3])
if not c then return 'invalid' end
return credentialRefusal(c) or 'usable'
