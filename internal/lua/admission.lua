-- Shared by connect.lua and check_connect.lua, which read these fields first: state, team, endpoint, owner, ownerUntil.

-- Returns why a connection cannot own the session: ended, foreign or in_use. It returns
-- nil if it can. A session is in use while another connection's lease has not expired,
-- unless that connection is the predecessor.
local function refusal(connection, predecessor, rejectDuplicate, team, endpoint)
  if channel.state == '' then return nil end
  if channel.state == 'ended' then return 'ended' end
  if channel.team ~= team or channel.endpoint ~= endpoint then return 'foreign' end
  local owner = channel.owner
  if rejectDuplicate == '1' and owner ~= '' and owner ~= connection and owner ~= predecessor
    and toNumber(channel.ownerUntil) > now then
    return 'in_use'
  end
end
