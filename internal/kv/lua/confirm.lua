-- uses: loss trim history
-- Makes messages visible that send.lua has held back, after replicas have confirmed them.
--
-- ARGV[1]  ID of the newest of them, as send.lua returned it
-- ARGV[2]  1: replicas may not have had it; then its loss concerns nobody
-- returns  confirmed, or lost if the store has lost that message
--
-- Atomic so that a connection either reads the messages in the history or is notified.
runWhenFull()
loadChannel('state', 'epoch', 'outLast', 'trimmed', 'held')
if channel.state == 'open' and isLost(OUT, ARGV[1], channel.outLast, toNumber(channel.trimmed)) then
  if ARGV[2] ~= '1' then reportLoss() end
  return 'lost'
end
if channel.state == '' then return 'lost' end
showMessages(ARGV[1])
return 'confirmed'
