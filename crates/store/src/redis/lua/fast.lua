-- Admits plans that consist of exact logs and leave no record: most of all traffic.
--
-- One call decides many plans, in their order. What it reads of a log it remembers for the plans
-- behind, and what it admits it writes once per log at the end, so a scope that all plans share
-- costs little more than one. An id is the member of its entries and is added only if it is not
-- there: however often an attempt arrives, and in whatever order, it is counted once.
--
-- Arguments of a plan: how many follow, id, the charge to look for the id in if this is a retry
-- (else empty), number of charges; of each charge: take, 1 if the expiry has to be moved, its
-- longest window, number of windows, and limit and length of each.
--
-- Answer of a plan: 0 (admitted), 1 (denied: wait, charge, window) or 2 (an error: its text), and
-- then for each window how much is used and in how long the oldest part leaves.
local PENDING_MAX = 2000

local logs, order = {}, {}

local function open(key, window)
  local log = logs[key]
  if not log then
    local count, oldest = log_open(key, now - window)
    log = {
      key = key, window = window, count = count, oldest = oldest, views = {},
      -- How many this call has admitted, how many of them are written, and the others.
      added = 0, written = 0, pending = {}, keep = not oldest,
    }
    logs[key] = log
    order[#order + 1] = log
  end
  log.window = math.max(log.window, window)
  return log
end

-- What a window of a log held when this call began.
local function view(log, window)
  local seen = log.views[window]
  if not seen then
    seen = { count = log.count, oldest = log.oldest }
    if seen.oldest and seen.oldest <= now - window then
      seen.count, seen.oldest = log_since(log.key, now - window)
      seen.count = seen.count - log.written
    end
    log.views[window] = seen
  end
  return seen
end

local function flush(log)
  if #log.pending > 0 then
    call('ZADD', log.key, 'NX', unpack(log.pending))
    log.pending, log.written = {}, log.added
  end
end

local function admit(log, id, take)
  for number = 0, take - 1 do
    local pending = log.pending
    pending[#pending + 1] = now_text
    pending[#pending + 1] = member(id, number)
    if #pending >= PENDING_MAX then
      flush(log)
    end
    log.added = log.added + 1
  end
end

local answer, length = {}, 0

local function put(value)
  length = length + 1
  answer[length] = value
end

local function decide(at, key)
  local id, retried, charges = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2])
  at = at + 3
  local replayed = retried ~= '' and call('ZSCORE', KEYS[key + retried], id)
  -- Columns and not rows: a table for each window would cost more than it tells.
  local opened, takes = {}, {}
  local of, place, limits, windows, seen = {}, {}, {}, {}, {}
  local rows, fits = 0, true
  for charge = 1, charges do
    local take, longest, count = tonumber(ARGV[at]), tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
    local log = open(KEYS[key + charge - 1], longest)
    log.keep = log.keep or ARGV[at + 1] == '1'
    opened[charge], takes[charge] = log, take
    at = at + 4
    for number = 0, count - 1 do
      local limit, window = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
      local held = view(log, window)
      rows = rows + 1
      of[rows], place[rows], limits[rows], windows[rows], seen[rows] = charge, number, limit, window, held
      fits = fits and held.count + log.added + take <= limit
      at = at + 2
    end
  end

  if replayed then
    put(0)
  elseif fits then
    for charge = 1, charges do
      admit(opened[charge], id, takes[charge])
    end
    put(0)
  else
    local start, hit = now, 1
    for row = 1, rows do
      local log, take = opened[of[row]], takes[of[row]]
      if not (seen[row].count + log.added + take <= limits[row]) then
        flush(log)
        local leaves = log_newest(log.key, limits[row] - take + 1) + windows[row]
        if leaves > start then
          start, hit = leaves, row
        end
      end
    end
    put(1)
    put(start - now)
    put(of[hit] - 1)
    put(place[hit])
  end
  for row = 1, rows do
    local added, oldest = opened[of[row]].added, seen[row].oldest
    if added > 0 and (not oldest or oldest > now) then
      oldest = now
    end
    put(seen[row].count + added)
    put(oldest and oldest + windows[row] - now or 0)
  end
end

put(now)
local at, key = 1, 1
while ARGV[at] do
  local before = length
  local charges = tonumber(ARGV[at + 3])
  local done, problem = pcall(decide, at + 1, key)
  if not done then
    -- One plan's error is its own: a key that holds something else, for instance.
    length = before
    put(2)
    put(type(problem) == 'table' and problem.err or problem)
  end
  at = at + 1 + ARGV[at]
  key = key + charges
end
for _, log in ipairs(order) do
  flush(log)
  if log.keep then
    keep(log.key, now + 2 * log.window)
  end
end
-- What an error left behind the end is not part of the answer.
for n = #answer, length + 1, -1 do
  answer[n] = nil
end
return answer
