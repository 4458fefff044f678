-- Reads a plan from the arguments, and runs operations on its charges.
local KINDS = { log = log, slots = slots, windowed = slices, calendar = calendar, bucket = bucket }

local at_arg, at_key = first_arg, first_key
-- Index of the last argument of this operation. Later versions append arguments.
local last_arg = 0

-- Returns the next argument, or nil if the operation has no more.
local function argument()
  if at_arg < last_arg then
    at_arg = at_arg + 1
    return ARGV[at_arg]
  end
end

-- Returns the next argument as a whole number, or nil if it is empty.
local function number()
  local given = argument()
  if given == '' then
    return nil
  end
  local n = tonumber(given)
  if not (n and n >= 0 and n <= MAX) then
    error('not a whole number below 2^53: ' .. given)
  end
  return n
end

local function key()
  at_key = at_key + 1
  return KEYS[at_key]
end

local function read_charge()
  local c = { kind = argument(), key = key() }
  c.shadow, c.refunds, c.gate = argument() == '1', argument() == '1', argument() == '1'
  c.unit, c.need, c.take, c.window = argument(), number(), number(), number()
  c.holds = c.refunds and key() or nil
  c.bookable = c.kind ~= 'slots'
  if c.kind == 'log' then
    c.quotas = {}
    for n = 1, number() do
      c.quotas[n] = { limit = number(), window = number() }
    end
  elseif c.kind == 'slots' then
    -- A lease counts until its end, and no window longer.
    c.quotas = { { limit = number(), window = 0 } }
    c.lease, c.window = c.window, 0
  elseif c.kind == 'windowed' then
    c.limit = number()
  elseif c.kind == 'calendar' then
    c.limit, c.bounds = number(), { number(), number(), number() }
  elseif c.kind == 'bucket' then
    c.limit, c.drain, c.grain = number(), { number(), number() }, number()
  end
  return c
end

local function read_plan()
  local plan = {
    id = argument(), fingerprint = argument(), recorded = argument() == '1', keep = number(),
    hold = number(), slack = number(), horizon = number(), window = number(),
  }
  plan.record = key()
  for n = 1, number() do
    plan[n] = read_charge()
  end
  return plan
end

-- Reads what pacing adds to a plan, behind the other arguments of an operation: the lead, the
-- charges that only spread starts, and the owner. Previous versions send none of it, or no owner.
local function read_pacing(plan)
  local lead = argument()
  if not lead then
    return
  end
  plan.lead = tonumber(lead)
  for _ = 1, number() do
    plan[number() + 1].spreads = true
  end
  local owner = argument()
  for _, c in ipairs(plan) do
    c.owner = c.kind == 'bucket' and not c.spreads and owner or nil
  end
end

-- Returns true if a reset came after the charge was written at `use.at`. Entries of logs and leases
-- have unique names, so they can't be confused with later ones.
local function was_reset(use)
  if use.kind == 'log' or use.kind == 'slots' then
    return false
  end
  local reset = tonumber(call('HGET', use.key, 'reset'))
  return reset and use.at <= reset
end

local function give_back(use, amount, at)
  if amount > 0 and not was_reset(use) then
    KINDS[use.kind].give_back(use, amount, at)
  end
end

-- Estimates that are refunded automatically are kept in a sorted set next to their counter. The
-- score is the time of the refund, the member is the packed charge.
local function hold(use, until_at)
  use.held = use.held or cmsgpack.pack(use)
  call('ZADD', use.holds, text(until_at), use.held)
  -- Kept for as long as the charge counts, because the refund may run late.
  keep(use.holds, until_at + use.kept)
end

local function unhold(use)
  if use.held then
    call('ZREM', use.holds, use.held)
  end
end

-- Refunds estimates that were not settled in time, as of the time they were due, so that the result
-- does not depend on which call runs the refund, or how late.
local function give_back_due(holds)
  for _ = 1, 8 do
    local due = call('ZRANGEBYSCORE', holds, '-inf', now_text, 'WITHSCORES', 'LIMIT', 0, PURGE_MAX)
    for n = 1, #due, 2 do
      local use = cmsgpack.unpack(due[n])
      give_back(use, use.amount, tonumber(due[n + 1]))
      call('ZREM', holds, due[n])
    end
    if #due < 2 * PURGE_MAX then
      return
    end
  end
end

local function open(plan)
  for _, c in ipairs(plan) do
    if c.holds then
      give_back_due(c.holds)
    end
    KINDS[c.kind].open(c)
  end
end

local function earliest(c, from, slack)
  return KINDS[c.kind].earliest(c, from, slack)
end

local function calendars_cover(plan, at)
  for _, c in ipairs(plan) do
    if c.bounds and not period_end(c.bounds, at) then
      return false
    end
  end
  return true
end

-- Returns the time that is a lead later than now: now itself if the work is not paced.
local function after_lead(plan)
  return now + (plan.lead or 0)
end

-- Returns the time after its start at which a charge is written: the slack of work that is booked
-- or paced, except for a rule that only spreads starts.
local function slack_of(plan, selection, c)
  local late = selection == 'bookable' or (selection == 'all' and plan.lead)
  return late and not c.spreads and plan.slack or 0
end

-- Returns the earliest start, from a time on, at which every selected charge fits, and the charge
-- and limit that prevent an earlier one. Returns no start if the plan never fits. Repeats from each
-- later start until no charge moves it.
local function plan_start(plan, selection, from_time)
  local start, charge, limit = from_time, nil, nil
  repeat
    local from = start
    for n, c in ipairs(plan) do
      if not c.shadow and (c.bookable or selection == 'all') then
        local at, which = earliest(c, start, slack_of(plan, selection, c))
        if not at then
          return nil, n - 1, which
        end
        if at > start then
          start, charge, limit = at, n - 1, which
        end
      end
    end
  until start == from
  return start, charge, limit
end

local SELECTIONS = {
  all = function() return true end,
  bookable = function(c) return c.bookable end,
  leases = function(c) return not c.bookable end,
}

-- Returns the shadow charges that do not fit at `start`.
local function shadowed(plan, selection, start)
  local found = {}
  for n, c in ipairs(plan) do
    if c.shadow and earliest(c, start, slack_of(plan, selection, c)) ~= start then
      found[n] = true
    end
  end
  return found
end

-- Writes the selected charges of a plan that fits, and returns them. `base` names the entries of
-- this admission: an id may be admitted again when its record is gone, but entry names must not
-- repeat.
local function write(plan, selection, start, base)
  local skipped, uses = shadowed(plan, selection, start), {}
  for n, c in ipairs(plan) do
    if SELECTIONS[selection](c) and not skipped[n] then
      local use = {
        kind = c.kind, key = c.key, at = now, unit = c.unit, amount = c.take, base = base,
        holds = c.holds, refunds = c.refunds and c.take > 0, kept = c.window,
      }
      KINDS[c.kind].take(c, use, start, slack_of(plan, selection, c))
      uses[#uses + 1] = use
    end
  end
  return uses, skipped
end

-- Appends the readings of all limits to a reply. After a write, it reads the counters again.
local function put_readings(reply, plan, written)
  for _, c in ipairs(plan) do
    if written then
      KINDS[c.kind].open(c)
    end
    for n = 1, c.quotas and #c.quotas or 1 do
      local used, left = KINDS[c.kind].reading(c, n)
      reply[#reply + 1] = used
      reply[#reply + 1] = left
    end
  end
  return reply
end
