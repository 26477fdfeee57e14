-- Which connection has a session.

-- Returns why a connection does not own the session: lost, ended, expired (its lease) or
-- not_owner (another connection replaced it). It returns nil if it does. number is the
-- connection's number: if there were fewer connections, the store has lost this one.
local function ownerRejection(connection, number)
  if channel.owner == connection and connection ~= '' then return nil end
  readFields('state', 'connections')
  if channel.state == '' then return 'lost' end
  if channel.state == 'ended' then return 'ended' end
  if toNumber(channel.connections) < toNumber(number) then return 'lost' end
  return channel.owner == '' and 'expired' or 'not_owner'
end

-- Returns why a connection cannot own the session: ended, foreign (another team or
-- endpoint) or in_use. It returns nil if it can. A session is in use while the lease of
-- another connection, except the predecessor, has not expired. Needs state, team, endpoint, owner and ownerUntil.
local function connectionRejection(connection, predecessor, rejectDuplicate, team, endpoint)
  if channel.state == '' then return nil end
  if channel.state == 'ended' then return 'ended' end
  if channel.team ~= team or channel.endpoint ~= endpoint then return 'foreign' end
  local owner = channel.owner
  if rejectDuplicate == '1' and owner ~= '' and owner ~= connection and owner ~= predecessor
    and toNumber(channel.ownerUntil) > now then
    return 'in_use'
  end
end
