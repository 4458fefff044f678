-- Counts the heartbeats of all nodes, so that a node notices when the server has lost its memory.
--
-- A hash: `memory` is a name for all that the server remembers, chosen by the first heartbeat that
-- finds none; `since` is when. `count` grows with every heartbeat. `losses` is how often the memory
-- was lost, `lost_at` when last. The arguments are a name that nobody else chooses, and what the
-- node remembers of its heartbeat before: memory, count and losses, all empty if it is its first.
--
-- Nodes agree because the first of them that notices a loss writes it down: a node that finds more
-- losses than it remembers does not count another one.
local key, fresh, known = KEYS[1], ARGV[1], ARGV[2]
local known_count, known_losses = tonumber(ARGV[3]), tonumber(ARGV[4])
-- No window is longer than 366 days.
local KEPT_MS = 400 * 86400000

local state = call('HMGET', key, 'memory', 'since', 'count', 'losses', 'lost_at')
local memory, since = state[1] or fresh, tonumber(state[2]) or now
local count, losses, lost_at = tonumber(state[3]) or 0, tonumber(state[4]) or 0, tonumber(state[5])
if known ~= '' and losses <= known_losses then
  if memory ~= known then
    -- It was lost before the name that is there now was chosen.
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
