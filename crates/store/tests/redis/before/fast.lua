-- What both scripts stand on. All times are whole microseconds, below 2^53.
local call = redis.call
local tonumber, type, unpack = tonumber, type, unpack
local MAX = 9007199254740991

-- How much longer than needed a key lives. Expiry only reclaims memory: every decision looks at
-- the instants themselves.
local MARGIN_MS = 5000
-- The most entries that one call forgets: removing 100,000 would take longer than a time-out.
local PURGE_MAX = 256

-- A whole number as text: tostring would round a microsecond time.
local function text(number)
  return string.format('%.0f', number)
end

-- Lets a key live until then, and never less than it was told before.
local function keep(key, until_at)
  local ms = math.ceil((until_at - now) / 1000) + MARGIN_MS
  if call('PTTL', key) < ms then
    call('PEXPIRE', key, text(ms))
  end
end

-- Numbers are given to Redis as text where that can be: it would print each as a double.

-- Forgets what a log holds from `cutoff` or before. Returns how many are left, the oldest, and
-- whether some could not be forgotten yet.
local function log_open(key, cutoff)
  local oldest = tonumber(call('ZRANGE', key, '0', '0', 'WITHSCORES')[2])
  if not oldest then
    return 0, nil
  end
  local count = call('ZCARD', key)
  if oldest > cutoff then
    return count, oldest
  end
  local gone = call('ZCOUNT', key, '-inf', text(cutoff))
  local purged = math.min(gone, PURGE_MAX)
  call('ZREMRANGEBYRANK', key, '0', purged - 1)
  local first = gone - purged
  local oldest_left = tonumber(call('ZRANGE', key, first, first, 'WITHSCORES')[2])
  return count - gone, oldest_left, first > 0
end

-- How many entries are newer than `cutoff`, and the oldest of them.
local function log_since(key, cutoff)
  local after = '(' .. text(cutoff)
  local oldest = call('ZRANGEBYSCORE', key, after, '+inf', 'WITHSCORES', 'LIMIT', '0', '1')[2]
  return call('ZCOUNT', key, after, '+inf'), tonumber(oldest)
end

-- The score of the k-th newest entry, future ones included.
local function log_newest(key, k)
  return tonumber(call('ZRANGE', key, -k, -k, 'WITHSCORES')[2])
end

-- The member of entry `number` of a use; the first is the use itself.
local function member(base, number)
  return number == 0 and base or base .. ':' .. number
end
-- Admits plans that consist of exact logs and leave no record: most of all traffic.
--
-- One call decides many plans, in their order. What it reads of a log it remembers for the plans
-- behind, and what it admits it writes once per log at the end, so a scope that all plans share
-- costs little more than one. An id is the member of its entries: however often an attempt arrives,
-- and in whatever order, it is there once.
--
-- A plan is three arguments, its id, its shape and its hints, and a key per charge. A shape is a text of numbers:
-- the charge to look for the id in if this is a retry (else -), the number of charges; and of each:
-- take, 1 if its expiry has to be moved, its longest window, the number of windows, and limit and
-- length of each. Plans under the same rules have the same shape, so it is read once.
--
-- Hints are the oldest entries of the logs where the node knows them, in 8 bytes each: while one is
-- in the window there is nothing to purge, and the log need not be asked for it.
--
-- The answer begins with the time. That of a plan is 0 (admitted), 1 (denied: wait, charge, window)
-- or 2 (an error: its text), and then for each window how much is used and in how long the oldest
-- part leaves. What is admitted or denied on a log that still holds what has left is 3 or 4 instead:
-- its oldest entry is no hint.
local PENDING_MAX = 2000

local shapes = {}

local function shape_of(written)
  local words = string.gmatch(written, '%S+')
  local shape = { retried = tonumber(words()), charges = tonumber(words()), rows = 0 }
  shape.takes, shape.moves, shape.spans = {}, {}, {}
  shape.of, shape.places, shape.limits, shape.windows = {}, {}, {}, {}
  for charge = 1, shape.charges do
    shape.takes[charge], shape.moves[charge] = tonumber(words()), words() == '1'
    shape.spans[charge] = tonumber(words())
    for place = 0, tonumber(words()) - 1 do
      local row = shape.rows + 1
      shape.rows, shape.of[row], shape.places[row] = row, charge, place
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
  -- `count` and `oldest` are as this call found them. `added` is how many it has admitted since,
  -- `written` how many of these are in Redis; `pending` is one that is not, or a list of them.
  local log = {
    key = key, span = span, count = count, oldest = oldest or false,
    added = 0, written = 0, pending = false, moved = not oldest,
  }
  if unclean then
    log.unclean = true
  end
  opened = opened + 1
  logs[key], logs[opened] = log, log
  return log
end

-- How many a window held when this call began, and the oldest of them, where it is not all.
local function part_of(log, window)
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
    call('ZADD', log.key, now_text, pending)
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
      pending = pending and { now_text, pending } or {}
      log.pending = pending
    end
    local length = #pending
    pending[length + 1], pending[length + 2] = now_text, member(id, number)
    log.added = log.added + 1
    if length > PENDING_MAX then
      flush(log)
    end
  end
end

local answer, length = { now }, 1
-- Of the plan that is being decided: the log of each charge, and what each of its rows held.
local charged, held, since = {}, {}, {}

-- The first instant at which a plan fits that does not now, and the row that is why not before.
local function wait_for(shape)
  local start, hit = now, 1
  for row = 1, shape.rows do
    local log, take, limit = charged[shape.of[row]], shape.takes[shape.of[row]], shape.limits[row]
    if not (held[row] + log.added + take <= limit) then
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
    if shape.moves[charge] then
      log.moved, log.span = true, math.max(log.span, shape.spans[charge])
    end
    charged[charge], unclean = log, unclean or log.unclean
  end
  local fits = true
  for row = 1, rows do
    local log = charged[of[row]]
    local count, oldest = log.count, log.oldest
    if oldest and oldest <= now - windows[row] then
      count, oldest = part_of(log, windows[row])
    end
    held[row], since[row] = count, oldest
    fits = fits and count + log.added + takes[of[row]] <= limits[row]
  end

  if fits or replayed then
    for charge = 1, replayed and 0 or charges do
      admit(charged[charge], id, takes[charge])
    end
    length = length + 1
    answer[length] = unclean and 3 or 0
  else
    local start, hit = wait_for(shape)
    answer[length + 1], answer[length + 2] = unclean and 4 or 1, start - now
    answer[length + 3], answer[length + 4] = of[hit] - 1, shape.places[hit]
    length = length + 4
  end
  for row = 1, rows do
    local added, oldest = charged[of[row]].added, since[row]
    if added > 0 and (not oldest or oldest > now) then
      oldest = now
    end
    answer[length + 1] = held[row] + added
    answer[length + 2] = oldest and oldest + windows[row] - now or 0
    length = length + 2
  end
end

local at, key = 1, 1

local function next_plan()
  local written = ARGV[at + 1]
  local shape = shapes[written] or shape_of(written)
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
    -- One plan's error is its own: a key that holds something else, for instance.
    answer[length + 1] = 2
    answer[length + 2] = type(problem) == 'table' and problem.err or problem
    length = length + 2
  end
until done
for number = 1, opened do
  local log = logs[number]
  flush(log)
  if log.moved and log.oldest then
    keep(log.key, now + 2 * log.span)
  elseif log.moved and log.added > 0 then
    call('PEXPIRE', log.key, text(math.ceil(2 * log.span / 1000) + MARGIN_MS))
  end
end
return answer
