-- Admits plans that consist of exact logs and leave no record: most of all traffic.
--
-- One call decides many plans, in order. The state of a log is read once and kept for the following
-- plans, and new entries are written once per log at the end. So a scope that all plans share costs
-- little more than a single plan. The id of a plan is the member name of its entries: an attempt
-- that arrives several times, in any order, is counted once.
--
-- A plan has three arguments (id, shape, hints) and one key per charge. The shape is a list of
-- numbers: the charge in which to look for the id if this is a retry (else -), the number of
-- charges, and for each charge: the amount, 1 if its expiry has to be set, its longest window, the
-- number of windows, and the limit and length of each. Plans under the same rules have the same
-- shape, so it is parsed once.
--
-- Hints are the oldest entries of the logs, 8 bytes each, where the node knows them. While a hint
-- is inside the window, there is nothing to purge, and the log's oldest entry need not be read.
--
-- The reply begins with the time. Each plan's part is 0 (admitted), 1 (denied: wait, charge,
-- window), 2 (error: its text) or 5 (admitted by an earlier attempt: time since its charge), followed
-- by the used amount of each window and the time until its oldest entry leaves. If a log still holds
-- entries that have left the window, the code is 3 or 4 instead of 0 or 1. The oldest entry must not
-- be used as a hint then, nor with code 5.
local PENDING_MAX = 2000

local shapes = {}

local function parse_shape(written)
  local words = string.gmatch(written, '%S+')
  local shape = { retried = tonumber(words()), charges = tonumber(words()), rows = 0 }
  shape.takes, shape.sets_expiry, shape.spans = {}, {}, {}
  shape.of, shape.indices, shape.limits, shape.windows = {}, {}, {}, {}
  for charge = 1, shape.charges do
    shape.takes[charge], shape.sets_expiry[charge] = tonumber(words()), words() == '1'
    shape.spans[charge] = tonumber(words())
    for index = 0, tonumber(words()) - 1 do
      local row = shape.rows + 1
      shape.rows, shape.of[row], shape.indices[row] = row, charge, index
      shape.limits[row], shape.windows[row] = tonumber(words()), tonumber(words())
    end
  end
  shapes[written] = shape
  return shape
end

local logs, opened = {}, 0

local function open(key, span, hint)
  local count, oldest, unclean
  if hint and hint > now - span then
    count = call('ZCARD', key)
    oldest = count > 0 and hint
  else
    count, oldest, unclean = log_open(key, now - span)
  end
  -- `count` and `oldest` are the state before this call. `added` is the number of entries that this
  -- call has admitted, `written` how many of them are in Redis already; `pending` is one entry that
  -- is not, or a list of them.
  local log = {
    key = key, span = span, count = count, oldest = oldest or false,
    added = 0, written = 0, pending = false, expiry_due = not oldest,
    score = unit(key) == 1 and now_text or score(key, now),
  }
  if unclean then
    log.unclean = true
  end
  opened = opened + 1
  logs[key], logs[opened] = log, log
  return log
end

-- Returns the number of entries in a shorter window before this call, and the oldest of them.
local function window_state(log, window)
  log.parts = log.parts or {}
  local part = log.parts[window]
  if not part then
    local count, oldest = log_since(log.key, now - window)
    part = { count - log.written, oldest or false }
    log.parts[window] = part
  end
  return part[1], part[2]
end

local function flush(log)
  local pending = log.pending
  if type(pending) == 'table' then
    call('ZADD', log.key, unpack(pending))
  elseif pending then
    call('ZADD', log.key, log.score, pending)
  end
  log.pending, log.written = false, log.added
end

local function admit(log, id, take)
  if take == 1 and not log.pending then
    log.pending, log.added = id, log.added + 1
    return
  end
  for number = 0, take - 1 do
    local pending = log.pending
    if type(pending) ~= 'table' then
      pending = pending and { log.score, pending } or {}
      log.pending = pending
    end
    local length = #pending
    pending[length + 1], pending[length + 2] = log.score, member(id, number)
    log.added = log.added + 1
    if length > PENDING_MAX then
      flush(log)
    end
  end
end

local reply, length = { now }, 1
-- State of the plan that is being decided: the log of each charge, and the count of each limit.
local charged, counts, since = {}, {}, {}

-- Returns the earliest start of a plan that does not fit now, and the limit that prevents an
-- earlier one.
local function wait_for(shape)
  local start, hit = now, 1
  for row = 1, shape.rows do
    local log, take, limit = charged[shape.of[row]], shape.takes[shape.of[row]], shape.limits[row]
    if not (counts[row] + log.added + take <= limit) then
      flush(log)
      local leaves = log_newest(log.key, limit - take + 1) + shape.windows[row]
      if leaves > start then
        start, hit = leaves, row
      end
    end
  end
  return start, hit
end

local function decide(id, shape, hints, key)
  local charges, rows = shape.charges, shape.rows
  local of, takes, limits, windows = shape.of, shape.takes, shape.limits, shape.windows
  local replayed = shape.retried and call('ZSCORE', KEYS[key + shape.retried], id)
  local unclean = false
  for charge = 1, charges do
    local name = KEYS[key + charge - 1]
    local log = logs[name]
    if not log then
      local hint = hints ~= '' and struct.unpack('>I8', hints, 8 * charge - 7)
      log = open(name, shape.spans[charge], hint)
    end
    if shape.sets_expiry[charge] then
      log.expiry_due, log.span = true, math.max(log.span, shape.spans[charge])
    end
    charged[charge], unclean = log, unclean or log.unclean
  end
  local fits = true
  for row = 1, rows do
    local log = charged[of[row]]
    local count, oldest = log.count, log.oldest
    if oldest and oldest <= now - windows[row] then
      count, oldest = window_state(log, windows[row])
    end
    counts[row], since[row] = count, oldest
    fits = fits and count + log.added + takes[of[row]] <= limits[row]
  end

  if replayed then
    -- Scores of a literal key are rounded up, also beyond now.
    local written = tonumber(replayed) * unit(KEYS[key + shape.retried])
    reply[length + 1], reply[length + 2] = 5, math.max(now - written, 0)
    length = length + 2
  elseif fits then
    for charge = 1, charges do
      admit(charged[charge], id, takes[charge])
    end
    length = length + 1
    reply[length] = unclean and 3 or 0
  else
    local start, hit = wait_for(shape)
    reply[length + 1], reply[length + 2] = unclean and 4 or 1, start - now
    reply[length + 3], reply[length + 4] = of[hit] - 1, shape.indices[hit]
    length = length + 4
  end
  for row = 1, rows do
    local added, oldest = charged[of[row]].added, since[row]
    if added > 0 and (not oldest or oldest > now) then
      oldest = now
    end
    reply[length + 1] = counts[row] + added
    reply[length + 2] = oldest and oldest + windows[row] - now or 0
    length = length + 2
  end
end

local at, key = first_arg + 1, first_key + 1

local function next_plan()
  local written = ARGV[at + 1]
  local shape = shapes[written] or parse_shape(written)
  at, key = at + 3, key + shape.charges
  decide(ARGV[at - 3], shape, ARGV[at - 1], key - shape.charges)
end

local function all_plans()
  while ARGV[at] do
    next_plan()
  end
end

repeat
  local done, problem = pcall(all_plans)
  if not done then
    -- An error concerns only its own plan, for example a key of another type.
    reply[length + 1] = 2
    reply[length + 2] = type(problem) == 'table' and problem.err or problem
    length = length + 2
  end
until done
for number = 1, opened do
  local log = logs[number]
  flush(log)
  if log.expiry_due and log.oldest then
    keep(log.key, now + 2 * log.span)
  elseif log.expiry_due and log.added > 0 then
    call('PEXPIRE', log.key, text(math.max(math.ceil(2 * log.span / 1000) + MARGIN_MS, TTL_MIN_MS)))
  end
end
return reply
