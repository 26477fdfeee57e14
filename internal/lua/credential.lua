-- Shared by callback.lua and check_credential.lua: checks a credential. Both read state and queue first.

-- Returns the credential with a digest if it is for this kind of callback and, unless
-- empty, this work item; otherwise nil.
local function credentialFor(digest, kind, workItemID)
  local c = channel.state ~= '' and findCredential(digest)
  if c and c.kind == kind and (workItemID == '' or workItemID == c.id) then return c end
end

-- Returns why a credential cannot be used: invalid, ended, cancelled or consumed. It
-- returns nil if it can.
local function refusal(c)
  if now >= c.deadline + (c.state ~= 'awaiting' and RETENTION or 0) then return 'invalid' end
  if channel.state == 'ended' then return 'ended' end
  if c.state == 'cancelled' then return 'cancelled' end
  if c.callbackID ~= '' then return 'consumed' end
  readQueue()
  if c.number > 0 and c.number < head then return 'invalid' end -- it timed out, then the store's clock went back
end
