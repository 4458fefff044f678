-- A plan, as it comes in the arguments, and what can be asked of its charges.
local KINDS = { log = log, slots = slots, windowed = slices, calendar = calendar, bucket = bucket }

local at_arg, at_key = first_arg, first_key
-- The last argument of this operation: later versions add theirs at the end.
local last_arg = 0

-- The next argument; nothing if the operation has no more of them.
local function argument()
  if at_arg < last_arg then
    at_arg = at_arg + 1
    return ARGV[at_arg]
  end
end

-- A whole number that can be counted, or nothing if the argument is empty.
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
    -- A lease counts until its end, and not a window longer.
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

-- Whether what was written at `use.at` was forgotten by a reset. Entries of logs and leases have
-- names of their own, which nobody else's can be taken for.
local function forgotten(use)
  if use.kind == 'log' or use.kind == 'slots' then
    return false
  end
  local reset = tonumber(call('HGET', use.key, 'reset'))
  return reset and use.at <= reset
end

local function give_back(use, amount, at)
  if amount > 0 and not forgotten(use) then
    KINDS[use.kind].give_back(use, amount, at)
  end
end

-- Estimates that are given back by themselves lie in a sorted set beside their counter, with when
-- as score and all that it takes as member.
local function hold(use, until_at)
  use.held = use.held or cmsgpack.pack(use)
  call('ZADD', use.holds, text(until_at), use.held)
  -- For as long as it counts: whoever comes by late has to find it.
  keep(use.holds, until_at + use.kept)
end

local function unhold(use)
  if use.held then
    call('ZREM', use.holds, use.held)
  end
end

-- Gives back what nobody settled in time, as of when it was due: it must not matter who comes by
-- first, or how late.
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

local function calendars_know(plan, at)
  for _, c in ipairs(plan) do
    if c.bounds and not period_end(c.bounds, at) then
      return false
    end
  end
  return true
end

-- The first instant at which every charge fits, and which limit of which charge is why not before;
-- no instant if it never does. Asked again from where it moved to, until none moves it.
local function plan_start(plan, booking)
  local slack = booking and plan.slack or 0
  local start, charge, limit = now, nil, nil
  repeat
    local from = start
    for n, c in ipairs(plan) do
      if not c.shadow and (c.bookable or not booking) then
        local at, which = earliest(c, start, slack)
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

local PARTS = {
  all = function() return true end,
  bookable = function(c) return c.bookable end,
  leases = function(c) return not c.bookable end,
}

-- The shadow charges that do not fit at `start`.
local function shadowed(plan, start, slack)
  local found = {}
  for n, c in ipairs(plan) do
    if c.shadow and earliest(c, start, slack) ~= start then
      found[n] = true
    end
  end
  return found
end

-- Writes a part of a plan that was found to fit, and returns its uses. `base` names the entries of
-- this admission: an id may be admitted again when its record is gone, but its entries may not.
local function write(plan, part, start, slack, base)
  local skipped, uses = shadowed(plan, start, slack), {}
  for n, c in ipairs(plan) do
    if PARTS[part](c) and not skipped[n] then
      local use = {
        kind = c.kind, key = c.key, at = now, unit = c.unit, amount = c.take, base = base,
        holds = c.holds, refunds = c.refunds and c.take > 0, kept = c.window,
      }
      KINDS[c.kind].take(c, use, start, slack)
      uses[#uses + 1] = use
    end
  end
  return uses, skipped
end

-- Adds what every limit shows to an answer; what has been written since it was opened is read anew.
local function put_readings(answer, plan, written)
  for _, c in ipairs(plan) do
    if written then
      KINDS[c.kind].open(c)
    end
    for n = 1, c.quotas and #c.quotas or 1 do
      local used, left = KINDS[c.kind].reading(c, n)
      answer[#answer + 1] = used
      answer[#answer + 1] = left
    end
  end
  return answer
end
