-- Offers of sessions to runtimes.

-- Returns whether the session should be offered to runtimes: it is unclaimed and was not
-- offered within OFFER_INTERVAL. Needs claimUntil and offeredAt.
local function needsOffer()
  return toNumber(channel.claimUntil) <= now and now - toNumber(channel.offeredAt) >= OFFER_INTERVAL
end

-- Returns 0, or what the caller should do: 1 offer the session to runtimes, 2 also count
-- that the claim has expired. Unless it returns 0, it changes offeredAt, which the script
-- must save. Needs claimedBy, claimUntil and offeredAt.
local function takeOffer()
  if not needsOffer() then return 0 end
  local expired = channel.offeredAt == '' and channel.claimedBy ~= ''
  channel.offeredAt = string.format('%d', now)
  return expired and 2 or 1
end
