-- Sums per slice of time, stored as a hash: end of a slice → its sum; `total` is the sum of all,
-- `first` the end of the oldest slice, `reset` the time of the last reset. A rolling window has
-- about a hundred slices, a calendar one or two periods.
local slices = {}

-- Returns the ends and sums of all slices, oldest first.
local function slices_all(key)
  local flat, ends, sums = call('HGETALL', key), {}, {}
  for n = 1, #flat, 2 do
    local at = tonumber(flat[n])
    if at then
      ends[#ends + 1] = at
      sums[at] = tonumber(flat[n + 1])
    end
  end
  table.sort(ends)
  return ends, sums
end

-- Stores the total and the first end of the remaining slices.
local function slices_sum_up(key, ends, sums, from)
  local total = 0
  for n = from, #ends do
    total = total + sums[ends[n]]
  end
  if ends[from] then
    call('HSET', key, 'total', text(total), 'first', text(ends[from]))
  else
    call('HDEL', key, 'total', 'first')
  end
  return total, ends[from]
end

-- Removes the slices that ended `window` or more ago. Returns the total of the others and the first
-- end.
local function slices_open(key, window)
  local known = call('HMGET', key, 'total', 'first')
  local total, first = tonumber(known[1]) or 0, tonumber(known[2])
  if not first or first + window > now then
    return total, first
  end
  local ends, sums = slices_all(key)
  local from = 1
  while ends[from] and ends[from] + window <= now do
    call('HDEL', key, text(ends[from]))
    from = from + 1
  end
  return slices_sum_up(key, ends, sums, from)
end

local function slices_get(key, at)
  return tonumber(call('HGET', key, text(at))) or 0
end

local function slices_add(key, at, amount, kept_until)
  local known = call('HMGET', key, 'total', 'first')
  -- Debt is capped at the largest number that can be counted.
  amount = math.min(amount, MAX - (tonumber(known[1]) or 0))
  if not (amount > 0) then
    return 0
  end
  call('HINCRBY', key, text(at), text(amount))
  call('HINCRBY', key, 'total', text(amount))
  local first = tonumber(known[2])
  if not first or at < first then
    call('HSET', key, 'first', text(at))
  end
  keep(key, kept_until)
  return amount
end

local function slices_give_back(key, at, amount)
  local held = slices_get(key, at)
  amount = math.min(amount, held)
  if not (amount > 0) then
    return
  end
  if amount < held then
    call('HINCRBY', key, text(at), text(-amount))
    call('HINCRBY', key, 'total', text(-amount))
    return
  end
  call('HDEL', key, text(at))
  local ends, sums = slices_all(key)
  slices_sum_up(key, ends, sums, 1)
end

-- Returns the end of the slice, a hundredth of the window, that contains `at`.
local function slice_end(window, at)
  local grain = math.floor(window / 100)
  local into = math.fmod(at, grain)
  return into == 0 and at or at - into + grain
end

function slices.open(c)
  c.total, c.first = slices_open(c.key, c.window)
end

function slices.earliest(c, from)
  local spare = c.limit - c.need
  if not (spare >= 0) then
    return nil, 0
  end
  if c.total <= spare then
    return from, 0
  end
  local ends, sums = slices_all(c.key)
  local rest = c.total
  for _, at in ipairs(ends) do
    if rest <= spare then
      break
    end
    rest = rest - sums[at]
    from = math.max(from, at + c.window)
  end
  return from, 0
end

function slices.take(c, use, start, slack)
  use.at_end, use.window = slice_end(c.window, start + slack), c.window
  if c.take > 0 then
    use.amount = slices_add(c.key, use.at_end, c.take, use.at_end + c.window)
  end
end

function slices.reading(c)
  return c.total, c.first and c.first + c.window - now or 0
end

function slices.give_back(use, amount)
  slices_give_back(use.key, use.at_end, amount)
end

function slices.refund(c, amount)
  local ends, sums = slices_all(c.key)
  local until_at = slice_end(c.window, now)
  for _, at in ipairs(ends) do
    if at > until_at or not (amount > 0) then
      return
    end
    slices_give_back(c.key, at, amount)
    amount = amount - sums[at]
  end
end

function slices.debt(use, amount)
  local at = slice_end(use.window, now)
  slices_add(use.key, at, amount, at + use.window)
end

-- Calendar periods: the same sums, each period on its own.
local calendar = {}

-- Returns the end of the period that contains `at`, if it is one of the two that the plan names.
local function period_end(bounds, at)
  if bounds[1] <= at and at < bounds[2] then
    return bounds[2]
  elseif bounds[2] <= at and at < bounds[3] then
    return bounds[3]
  end
end

function calendar.open(c)
  slices_open(c.key, 0)
end

-- A later period may be booked out, so not every later time fits.
function calendar.earliest(c, from, slack)
  local spare = c.limit - c.need
  if not (spare >= 0) then
    return nil, 0
  end
  local at_end = period_end(c.bounds, from)
  while at_end and not (slices_get(c.key, at_end) <= spare and from + slack < at_end) do
    from = at_end
    at_end = period_end(c.bounds, from)
  end
  return from, 0
end

function calendar.take(c, use, start)
  use.at_end, use.bounds = period_end(c.bounds, start) or start, c.bounds
  if c.take > 0 then
    use.amount = slices_add(c.key, use.at_end, c.take, use.at_end)
  end
end

function calendar.reading(c)
  local at_end = period_end(c.bounds, now)
  if not at_end then
    return 0, 0
  end
  return slices_get(c.key, at_end), at_end - now
end

calendar.give_back = slices.give_back

function calendar.refund(c, amount)
  local at_end = period_end(c.bounds, now)
  if at_end then
    slices_give_back(c.key, at_end, amount)
  end
end

-- A settlement after the known periods belongs to the period of the admission.
function calendar.debt(use, amount)
  local at_end = period_end(use.bounds, now) or use.at_end
  slices_add(use.key, at_end, amount, math.max(at_end, now))
end
