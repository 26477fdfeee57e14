-- uses: inspect credentials
-- Checks a credential without consuming it. It changes nothing.
--
-- ARGV[1]  SHA-256 of the credential, in hex
-- ARGV[2]  kind of the callback's route
-- ARGV[3]  work item ID from the path; empty: the path has none
-- returns  {outcome, ms until it is invalid, number of the work item or 0 for a channel credential}. The outcome is usable,
--          streaming if a streamed answer has begun, or why a callback would be rejected: invalid, ended, cancelled or
--          consumed. invalid stands alone
inspect('queue')
local c = credentialFor(ARGV[1], ARGV[2], ARGV[3])
if not c then return { 'invalid' } end
return { credentialRejection(c) or 'usable', tostring(expiryOf(c) - now), tostring(c.number) }
