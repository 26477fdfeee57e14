-- Reads the history after a position.
--
-- ARGV[1]  the position's epoch
-- ARGV[2]  its id
-- returns  {1, {id, message, id, message …}}, or {0} when history does not reach back
--
-- Atomic so that nothing is trimmed between the check and the reading.
load('epoch', 'outLast')
local found = since(ARGV[1], ARGV[2])
if not found then return { 0 } end
return { 1, found }
