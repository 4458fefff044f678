-- Counts the heartbeats of all nodes, so that a node detects that the server has lost data.
--
-- The state is a hash: `memory` names the data set of the server, chosen by the first heartbeat
-- that finds none, and `since` is the time of that choice. `count` increases with every heartbeat.
-- `losses` is the number of data losses, `lost_at` the time of the last one. The arguments are a
-- random name, and the values of the node's previous heartbeat: memory, count and losses, all empty
-- for its first.
--
-- All nodes agree, because the first node that detects a loss stores it: a node that finds more
-- losses than it knows does not count another one.
local key, fresh, known = KEYS[1], ARGV[1], ARGV[2]
local known_count, known_losses = tonumber(ARGV[3]), tonumber(ARGV[4])
-- No window is longer than 366 days.
local KEPT_MS = 400 * 86400000

local state = call('HMGET', key, 'memory', 'since', 'count', 'losses', 'lost_at')
local memory, since = state[1] or fresh, tonumber(state[2]) or now
local count, losses, lost_at = tonumber(state[3]) or 0, tonumber(state[4]) or 0, tonumber(state[5])
if known ~= '' and losses <= known_losses then
  if memory ~= known then
    -- The loss happened before the present name was chosen.
    losses, lost_at = known_losses + 1, since
  elseif count < known_count then
    losses, lost_at = known_losses + 1, now
  end
end
count = count + 1
call('HSET', key, 'memory', memory, 'since', text(since), 'count', text(count), 'losses', text(losses))
if lost_at then
  call('HSET', key, 'lost_at', text(lost_at))
end
call('PEXPIRE', key, text(KEPT_MS))
return { now, memory, count, losses, lost_at or 0 }
