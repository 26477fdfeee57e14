-- uses: loss trim history
-- Reads the first page of the history after a cursor.
--
-- ARGV[1]  epoch of the cursor
-- ARGV[2]  ID of the cursor
-- returns  {1, {ID, message, ID, message …}}, an empty list after the newest message; or {0} if the history after the cursor is incomplete
--
-- Atomic so that nothing is trimmed between the check and the read.
runWhenFull()
loadChannel('epoch', 'outLast', 'held')
local found = readHistoryAfter(ARGV[1], ARGV[2])
if not found then return { 0 } end
return { 1, found }
