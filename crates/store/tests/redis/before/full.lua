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
-- An exact log, as a sorted set: an entry for each request, its score the latest instant at which
-- it may be used. And leases, which are the same with their ends as scores and a window of nothing.
local log, slots = {}, {}

local function log_add(key, base, amount, score, mark)
  local line = {}
  for number = 0, amount - 1 do
    line[#line + 1] = text(score)
    line[#line + 1] = member(mark and base .. mark or base, number)
  end
  call('ZADD', key, unpack(line))
end

function log.open(c)
  c.counts, c.oldest = {}, {}
  local count, oldest = log_open(c.key, now - c.window)
  c.count = count
  for n, quota in ipairs(c.quotas) do
    if oldest and oldest <= now - quota.window then
      c.counts[n], c.oldest[n] = log_since(c.key, now - quota.window)
    else
      c.counts[n], c.oldest[n] = count, oldest
    end
  end
end

-- With k = limit − need + 1 it is when the k-th newest entry leaves.
function log.earliest(c, from)
  local hit = 0
  for n, quota in ipairs(c.quotas) do
    if not (c.need <= quota.limit) then
      return nil, n - 1
    end
    if not (c.count + c.need <= quota.limit) then
      local leaves = log_newest(c.key, quota.limit - c.need + 1) + quota.window
      if leaves > from then
        from, hit = leaves, n - 1
      end
    end
  end
  return from, hit
end

function log.take(c, use, start, slack)
  use.score, use.window = start + slack, c.window
  if c.take > 0 then
    log_add(c.key, use.base, c.take, use.score)
    keep(c.key, use.score + 2 * c.window)
  end
end

function log.reading(c, n)
  return c.counts[n], c.oldest[n] and c.oldest[n] + c.quotas[n].window - now or 0
end

-- Removes entries of a use, the last ones first, so that what is given back in parts is given back
-- once. How many of them were gone.
local function log_remove(use, amount)
  local line = {}
  for number = use.amount - 1, math.max(0, use.amount - amount), -1 do
    line[#line + 1] = member(use.base, number)
  end
  return #line > 0 and #line - call('ZREM', use.key, unpack(line)) or 0
end

local function log_remove_all(key, members)
  if #members > 0 then
    call('ZREM', key, unpack(members))
  end
end

-- A refund takes whichever entry it finds at an instant: whoever gives back an entry that is gone
-- gives back another of its instant.
function log.give_back(use, amount)
  local gone, at = log_remove(use, amount), text(use.score)
  if gone > 0 then
    log_remove_all(use.key, call('ZRANGEBYSCORE', use.key, at, at, 'LIMIT', 0, gone))
  end
end

function log.refund(c, amount)
  local since = '(' .. text(now - c.window)
  local oldest = call('ZRANGEBYSCORE', c.key, since, now_text, 'LIMIT', 0, text(amount))
  log_remove_all(c.key, oldest)
end

function log.debt(use, amount)
  log_add(use.key, use.base, amount, now, 'd')
  keep(use.key, now + 2 * use.window)
end

slots.open, slots.earliest, slots.reading = log.open, log.earliest, log.reading

-- Leases are given back by whoever holds them.
slots.give_back = log_remove
function slots.refund() end

function slots.take(c, use, start)
  use.ttl, use.lease = c.lease, start + c.lease
  log_add(c.key, use.base, c.take, use.lease)
  keep(c.key, use.lease)
end

local function slots_held(use)
  return use.lease > now and call('ZSCORE', use.key, use.base)
end

local function slots_renew(use)
  use.lease = math.max(use.lease, now + use.ttl)
  log_add(use.key, use.base, use.amount, use.lease)
  keep(use.key, use.lease)
end
-- Sums per slice of time, as a hash: the end of a slice → its sum; `total` of all, `first` the end
-- of the oldest, `reset` when it was last reset. A rolling window has about a hundred slices, a
-- calendar a period or two.
local slices = {}

-- All slices as ends and sums, oldest first.
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

-- Writes the total and the first of what is left.
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

-- Forgets the slices that ended `window` or more ago; the total of the others, and the first.
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
  -- Debt can't grow beyond what can be counted.
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

-- The end of the hundredth of a window that holds `at`.
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

-- A calendar period: the same sums, each for itself.
local calendar = {}

-- The end of the period that holds `at`, if it is one of the two that are known.
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

-- Later periods may be booked full, so not every later instant fits.
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

-- Settled later than the periods that were known, it belongs to the one it began in.
function calendar.debt(use, amount)
  local at_end = period_end(use.bounds, now) or use.at_end
  slices_add(use.key, at_end, amount, math.max(at_end, now))
end
-- A token bucket, as a hash: `empty` is when all that was taken has drained, `latest` the latest
-- instant at which something was or will be poured in, `back` all that was ever given back.
--
-- It drains in whole nanoseconds, and doubles can't count those since 1970. So a time is a pair:
-- microseconds, and the nanoseconds that are left over.
local bucket = {}

local function plus(us, ns, more_us, more_ns)
  us, ns = us + more_us, ns + more_ns
  if ns >= 1000 then
    us, ns = us + 1, ns - 1000
  end
  if us > MAX then
    return MAX, 0
  end
  return us, ns
end

-- Never below zero.
local function minus(us, ns, less_us, less_ns)
  us, ns = us - less_us, ns - less_ns
  if ns < 0 then
    us, ns = us - 1, ns + 1000
  end
  if us < 0 then
    return 0, 0
  end
  return us, ns
end

local function before(us, ns, other_us, other_ns)
  return us < other_us or (us == other_us and ns < other_ns)
end

-- How long whole grains take to drain, without a product that doubles can't hold.
local function drained_in(grains, drain)
  local low = math.fmod(grains, 1000)
  local high = (grains - low) / 1000
  local low_ns = low * drain[2]
  local ns = math.fmod(low_ns, 1000)
  local us = grains * drain[1] + high * drain[2] + (low_ns - ns) / 1000
  if us > MAX then
    return MAX, 0
  end
  return us, ns
end

local function grains_down(amount, grain)
  return (amount - math.fmod(amount, grain)) / grain
end

local function grains_up(amount, grain)
  return grains_down(amount, grain) + (math.fmod(amount, grain) > 0 and 1 or 0)
end

local FIELDS = { 'empty_us', 'empty_ns', 'latest', 'back_us', 'back_ns' }

local function bucket_load(key)
  local state = call('HMGET', key, unpack(FIELDS))
  for n = 1, #FIELDS do
    state[n] = tonumber(state[n]) or 0
  end
  return state
end

local function bucket_save(key, state)
  local line = {}
  for n = 1, #FIELDS do
    line[2 * n - 1], line[2 * n] = FIELDS[n], text(state[n])
  end
  call('HSET', key, unpack(line))
end

-- Pours in at `at`; the state behind it.
local function bucket_pour(key, at, amount, drain, grain)
  local state = bucket_load(key)
  state[3] = math.max(state[3], at)
  if before(state[1], state[2], at, 0) then
    state[1], state[2] = at, 0
  end
  state[1], state[2] = plus(state[1], state[2], drained_in(grains_up(amount, grain), drain))
  bucket_save(key, state)
  keep(key, state[1])
  return state
end

-- Leaves no room before `until_at`: how a gate is closed. Returns until when there is none.
local function bucket_fill(key, until_at)
  local state = bucket_load(key)
  state[3] = math.max(state[3], until_at)
  if before(state[1], state[2], until_at, 0) then
    state[1], state[2] = until_at, 0
  end
  bucket_save(key, state)
  keep(key, state[1])
  return state[1]
end

function bucket.open(c)
  c.state = bucket_load(c.key)
end

function bucket.earliest(c, from)
  if not (c.need <= c.limit) then
    return nil, 0
  end
  local room_us, room_ns = drained_in(grains_up(c.limit, c.grain), c.drain)
  room_us, room_ns = minus(room_us, room_ns, drained_in(grains_up(c.need, c.grain), c.drain))
  local start, rest = minus(c.state[1], c.state[2], room_us, room_ns)
  return math.max(from, rest > 0 and start + 1 or start), 0
end

function bucket.take(c, use, start, slack)
  use.drain, use.grain = c.drain, c.grain
  if c.take > 0 then
    c.state = bucket_pour(c.key, start + slack, c.take, c.drain, c.grain)
  end
  use.pour = c.state
end

-- The level as the time that it takes to drain; whoever asks knows how fast that is.
function bucket.reading(c)
  return minus(c.state[1], c.state[2], now, 0)
end

-- Only what has not drained: the rest has already made room for others. Where something is booked
-- for later, only what will not have drained until then; and what was given back since has let
-- this drain sooner if it was poured in before.
function bucket.give_back(use, amount, at)
  local state, pour = bucket_load(use.key), use.pour
  local us, ns = minus(pour[1], pour[2], minus(state[4], state[5], pour[4], pour[5]))
  us, ns = minus(us, ns, math.max(at, state[3]), 0)
  local drain_us, drain_ns = drained_in(grains_down(amount, use.grain), use.drain)
  if before(drain_us, drain_ns, us, ns) then
    us, ns = drain_us, drain_ns
  end
  if us > 0 or ns > 0 then
    state[1], state[2] = minus(state[1], state[2], us, ns)
    state[4], state[5] = plus(state[4], state[5], us, ns)
    bucket_save(use.key, state)
  end
end

-- All that is in it is taken for one pour.
function bucket.refund(c, amount)
  local use = { key = c.key, pour = bucket_load(c.key), drain = c.drain, grain = c.grain }
  bucket.give_back(use, amount, now)
end

function bucket.debt(use, amount)
  bucket_pour(use.key, now, amount, use.drain, use.grain)
end
-- A plan, as it comes in the arguments, and what can be asked of its charges.
local KINDS = { log = log, slots = slots, windowed = slices, calendar = calendar, bucket = bucket }

local at_arg, at_key = 0, 0

local function argument()
  at_arg = at_arg + 1
  return ARGV[at_arg]
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
-- What is remembered of an admission, packed under its id. See core/src/store.rs for its states.

-- How long a cancelled id is refused.
local TOMBSTONE = 60000000

-- The record of a key, unless its time is over.
local function load_record(name)
  local packed = call('GET', name)
  if not packed then
    return nil
  end
  local record = cmsgpack.unpack(packed)
  if record.expires > now then
    return record
  end
end

local function save_record(name, record)
  local ms = math.ceil((record.expires - now) / 1000) + MARGIN_MS
  call('SET', name, cmsgpack.pack(record), 'PX', text(ms))
end

-- The end of each lease, and that of the hold.
local function ends(record)
  local found = {}
  for _, use in ipairs(record.uses) do
    found[#found + 1] = use.lease
  end
  found[#found + 1] = record.hold_until
  return found
end

-- When something that a record holds ends first, if it holds anything.
local function held_until(record)
  local found = ends(record)
  return #found > 0 and math.min(unpack(found)) or nil
end

-- Keeps a record for as long as a retry, a settlement or a late arrival can come.
local function touch(record)
  local last = ends(record)
  if record.state == 'booked' then
    last[#last + 1] = record.start + record.slack
  end
  local expires = now + math.max(record.keep or 0, TOMBSTONE)
  if #last > 0 then
    expires = math.max(expires, math.max(unpack(last)) + record.window)
  end
  record.expires = math.max(record.expires or 0, expires)
end

local function new_record(plan, state, start, uses, told)
  local record = {
    state = state, fingerprint = plan.fingerprint, start = start, slack = plan.slack,
    keep = plan.keep, window = plan.window, uses = uses, told = told or {},
  }
  for _, use in ipairs(uses) do
    record.leased = record.leased or use.lease ~= nil
  end
  return record
end

-- Starts the hold of a record, and of every use that is given back at its end.
local function start_hold(record, ttl)
  if not ttl then
    return
  end
  record.hold_ttl, record.hold_until = ttl, now + ttl
  for _, use in ipairs(record.uses) do
    if use.refunds then
      hold(use, record.hold_until)
    end
  end
end

-- Whether an admission that was given leases still has all of them.
local function holds_leases(record)
  local any = false
  for _, use in ipairs(record.uses) do
    if use.lease then
      any = true
      if not slots_held(use) then
        return false
      end
    end
  end
  return any
end

-- What is still charged of a use: nothing, if it was given back by itself.
local function still_charged(record, use)
  local due = use.refunds and record.hold_until and record.hold_until <= now
  return due and 0 or use.amount
end

-- Ends what gives a use back by itself, after it has done so if it was due.
local function settle_hold(use)
  if use.holds then
    give_back_due(use.holds)
    unhold(use)
  end
end

-- Gives back all that a record has charged.
local function give_back_all(record)
  for _, use in ipairs(record.uses) do
    settle_hold(use)
    give_back(use, still_charged(record, use), now)
  end
end

-- What names the entries of an admission of this id, different for each. A booking that is made
-- anew may be so in the microsecond of the one before.
local function base_of(plan, generation)
  local base = plan.id .. string.format('%x', now)
  return generation and generation > 0 and base .. 'g' .. generation or base
end
-- The operations of the port, each by the table of core/src/store.rs.
local operations = {}

local function allow(plan, start, until_at, replayed, skipped, written)
  local shadows = {}
  for n = 1, #plan do
    if skipped and skipped[n] then
      shadows[#shadows + 1] = n - 1
    end
  end
  local answer = { 'allow', now, start, until_at or '', replayed and 1 or 0, shadows }
  return put_readings(answer, plan, written)
end

-- What a plan is told that can't start now, and that is not to be booked either.
local function refuse(plan, start, charge, limit)
  local word = start and 'deny' or 'never'
  return put_readings({ word, now, start or MAX, charge, limit }, plan)
end

local function replay(plan, record)
  local until_at = held_until(record)
  if record.state == 'booked' then
    until_at = record.start + record.slack
  end
  open(plan)
  return allow(plan, record.start, until_at, true)
end

-- Why a plan can't be what its record says that it is; nothing if it is.
local function is_other(record, plan, booked)
  if record.state == 'cancelled' then
    return { 'gone' }
  elseif (record.state == 'booked') ~= booked or record.fingerprint ~= plan.fingerprint then
    return { 'conflict' }
  elseif record.leased and not holds_leases(record) then
    return { 'lost' }
  end
end

-- Opens a plan; why it can't be decided, if it can't.
local function open_known(plan)
  if not calendars_know(plan, now) then
    return { 'skew' }
  end
  open(plan)
end

-- Why an open plan can't start now; nothing if it can.
local function not_now(plan)
  local start, charge, limit = plan_start(plan, false)
  if start ~= now then
    return refuse(plan, start, charge, limit)
  end
end

local function acquire_recorded(plan, lapsed)
  local uses, skipped = write(plan, 'all', now, 0, base_of(plan))
  local record = new_record(plan, 'open', now, uses, lapsed and lapsed.told)
  -- Whoever was told to go is remembered for as long as before.
  record.expires = lapsed and lapsed.expires
  start_hold(record, plan.hold)
  touch(record)
  save_record(plan.record, record)
  return allow(plan, now, held_until(record), false, skipped, true)
end

-- Ids that nobody else can use again need no record: a mark is enough for our own retries. Whoever
-- asked has asked once, so what they are told is not a replay.
local ONCE_MS = 2000

local function acquire_once(plan)
  if not call('SET', plan.record, '', 'NX', 'PX', ONCE_MS) then
    return allow(plan, now)
  end
  local _, skipped = write(plan, 'all', now, 0, plan.id)
  return allow(plan, now, nil, false, skipped, true)
end

function operations.acquire(plan)
  local record = plan.recorded and load_record(plan.record)
  if record and record.state ~= 'lapsed' then
    return is_other(record, plan, false) or replay(plan, record)
  end
  local unknown = open_known(plan)
  if unknown then
    return unknown
  end
  local refused = not_now(plan)
  if refused then
    local repeated = not plan.recorded and call('EXISTS', plan.record) == 1
    return repeated and allow(plan, now) or refused
  end
  return plan.recorded and acquire_recorded(plan, record) or acquire_once(plan)
end

function operations.peek(plan)
  return open_known(plan) or not_now(plan)
    or allow(plan, now, nil, false, shadowed(plan, now, 0))
end

-- Writes a booking in the place of `before`. Returns its start and what was skipped; or nothing, and
-- then when it could start and which limit of which charge is why not before.
local function book_anew(plan, before)
  local start, charge, limit = plan_start(plan, true)
  local reaches = start and start <= now + plan.horizon and calendars_know(plan, start)
  if start ~= now and not reaches then
    return nil, nil, start, charge, limit
  end
  local generation = (before and before.generation or 0) + 1
  local uses, skipped = write(plan, 'bookable', start, plan.slack, base_of(plan, generation))
  local record = new_record(plan, 'booked', start, uses, before and before.told)
  record.generation, record.expires = generation, before and before.expires
  touch(record)
  save_record(plan.record, record)
  return start, skipped
end

function operations.book(plan)
  local record = load_record(plan.record)
  if record and record.state ~= 'lapsed' then
    return is_other(record, plan, true) or replay(plan, record)
  end
  local unknown = open_known(plan)
  if unknown then
    return unknown
  end
  local start, skipped, refused, charge, limit = book_anew(plan, record)
  if not start then
    return refuse(plan, refused, charge, limit)
  end
  return allow(plan, start, start + plan.slack, false, skipped, true)
end

-- When the first lease that is missing is to be had, and which it is.
local function missing_lease(plan)
  for n, c in ipairs(plan) do
    if not c.bookable and not c.shadow then
      local at, which = earliest(c, now, 0)
      if at ~= now then
        return at or MAX, n - 1, which
      end
    end
  end
end

-- Whether every gate of a plan is open.
local function is_open(plan)
  for _, c in ipairs(plan) do
    if c.gate and earliest(c, now, 0) ~= now then
      return false
    end
  end
  return true
end

local function go(plan, record, replayed)
  local answer = allow(plan, record.start, held_until(record), replayed, nil, not replayed)
  answer[1] = 'go'
  table.insert(answer, 2, record.start + record.slack)
  return answer
end

local function was_told(record, claimant)
  for _, other in ipairs(record.told) do
    if other == claimant then
      return true
    end
  end
  return false
end

function operations.claim(plan)
  local claimant = argument()
  local record = load_record(plan.record)
  if not record or record.state == 'lapsed' then
    return { 'unknown' }
  elseif record.state == 'cancelled' then
    return { 'gone' }
  elseif record.state ~= 'booked' and not (record.state == 'open' and record.claimant) then
    return { 'conflict' }
  end
  open(plan)
  local in_time = now <= record.start + record.slack
  if was_told(record, claimant) then
    if record.claimant ~= claimant or not in_time then
      return { 'spent' }
    end
    return go(plan, record, true)
  elseif now < record.start then
    return { 'early', now, record.start }
  elseif not calendars_know(plan, now) then
    -- Before anything is changed: a plan from another day can't be booked anew.
    return { 'skew' }
  end
  if record.state == 'booked' and in_time and is_open(plan) then
    local at, charge, limit = missing_lease(plan)
    if at then
      return refuse(plan, at, charge, limit)
    end
    local leases = write(plan, 'leases', now, 0, base_of(plan, record.generation))
    record.leased = #leases > 0
    for _, use in ipairs(leases) do
      record.uses[#record.uses + 1] = use
    end
    record.state, record.claimant = 'open', claimant
    record.told[#record.told + 1] = claimant
    start_hold(record, plan.hold)
    touch(record)
    save_record(plan.record, record)
    return go(plan, record, false)
  end
  -- Late, somebody else's by now, or closed. What nobody has claimed was never used.
  if record.state == 'booked' then
    give_back_all(record)
    open(plan)
  end
  local start, _, refused, charge, limit = book_anew(plan, record)
  if start then
    return { 'rebooked', now, start }
  end
  record.state, record.uses = 'lapsed', {}
  record.claimant, record.hold_ttl, record.hold_until = nil, nil, nil
  save_record(plan.record, record)
  -- A limit that was lowered below what one piece of work needs has no start.
  return refuse(plan, refused or MAX, charge, limit)
end

function operations.refund(plan)
  open(plan)
  -- Our own retries give back once.
  if call('SET', plan.record, '', 'NX', 'PX', ONCE_MS) then
    for _, c in ipairs(plan) do
      if c.take > 0 then
        KINDS[c.kind].refund(c, c.take)
      end
    end
  end
  return put_readings({ 'usage', now }, plan, true)
end

function operations.close(plan)
  local until_at, shut = now + number(), now
  for _, c in ipairs(plan) do
    if c.gate then
      shut = math.max(shut, bucket_fill(c.key, until_at))
    end
  end
  return { 'shut', now, shut }
end

function operations.reset(plan)
  for _, c in ipairs(plan) do
    local left = call('PTTL', c.key)
    if left ~= -2 then
      call('DEL', c.key)
      if left > 0 and c.kind ~= 'log' and c.kind ~= 'slots' then
        -- It stays, empty, for as long as something of it could still be settled.
        call('HSET', c.key, 'reset', now_text)
        call('PEXPIRE', c.key, left)
      end
    end
    if c.holds then
      call('DEL', c.holds)
    end
  end
  return { 'reset', now }
end

function operations.usage(plan)
  open(plan)
  return put_readings({ 'usage', now }, plan)
end

-- What a record in a state in which there is nothing to end is told.
local REFUSED = { booked = 'not_claimed', cancelled = 'gone', lapsed = 'unknown' }

local FIRST, AGAIN = { 'ended', 0, now }, { 'ended', 1, now }

function operations.cancel(name)
  local claimant = argument()
  local record = load_record(name)
  if record and record.state == 'cancelled' then
    return AGAIN
  elseif record and record.state == 'settled' then
    return { 'conflict' }
  end
  if record and not (record.claimant and record.claimant ~= claimant) then
    give_back_all(record)
  end
  local tombstone = {
    state = 'cancelled', start = now, slack = 0, window = 0, uses = {}, told = {},
    keep = record and record.keep, expires = record and record.expires,
  }
  touch(tombstone)
  save_record(name, tombstone)
  return FIRST
end

local function read_cost()
  local cost, requests_max, actual = argument(), number(), {}
  for _ = 1, number() do
    local unit = argument()
    actual[unit] = number()
  end
  return cost, requests_max, actual
end

-- Why a record can't be settled, or that it has been; nothing if it can.
local function is_settled(record, cost, requests_max, actual)
  if not record then
    return { 'unknown' }
  elseif record.state == 'settled' then
    return record.cost == cost and AGAIN or { 'conflict' }
  elseif REFUSED[record.state] then
    return { REFUSED[record.state] }
  end
  for _, use in ipairs(record.uses) do
    if use.kind == 'log' and not ((actual.requests or 0) <= requests_max) then
      return { 'too_many' }
    end
  end
end

function operations.could_settle(name)
  return is_settled(load_record(name), read_cost()) or FIRST
end

function operations.settle(name)
  local cost, requests_max, actual = read_cost()
  local record = load_record(name)
  local settled = is_settled(record, cost, requests_max, actual)
  if settled then
    return settled
  end
  for _, use in ipairs(record.uses) do
    settle_hold(use)
    local charged, cost_now = still_charged(record, use), actual[use.unit]
    if use.lease then
      give_back(use, use.amount, now)
    elseif cost_now and cost_now > charged then
      KINDS[use.kind].debt(use, cost_now - charged)
    elseif cost_now then
      give_back(use, charged - cost_now, now)
    end
  end
  record.state, record.cost, record.uses = 'settled', cost, {}
  record.hold_ttl, record.hold_until = nil, nil
  touch(record)
  save_record(name, record)
  return FIRST
end

function operations.release(name)
  local record = load_record(name)
  if not record then
    return { 'unknown' }
  elseif record.state == 'settled' or (record.state == 'open' and record.released) then
    return AGAIN
  elseif REFUSED[record.state] then
    return { REFUSED[record.state] }
  end
  local rest = {}
  for _, use in ipairs(record.uses) do
    if use.lease then
      give_back(use, use.amount, now)
    else
      rest[#rest + 1] = use
    end
  end
  record.uses, record.released = rest, true
  save_record(name, record)
  return FIRST
end

function operations.renew(name)
  local record = load_record(name)
  if not record then
    return { 'unknown' }
  elseif record.state == 'settled' then
    return { 'conflict' }
  elseif REFUSED[record.state] then
    return { REFUSED[record.state] }
  end
  local first = held_until(record)
  if not first then
    return { 'nothing_held' }
  elseif first <= now then
    return { 'lost' }
  end
  for _, use in ipairs(record.uses) do
    if use.lease and not slots_held(use) then
      return { 'lost' }
    end
  end
  if record.hold_until then
    record.hold_until = math.max(record.hold_until, now + record.hold_ttl)
  end
  for _, use in ipairs(record.uses) do
    if use.lease then
      slots_renew(use)
    elseif use.refunds and record.hold_until then
      hold(use, record.hold_until)
    end
  end
  touch(record)
  save_record(name, record)
  return { 'renewed', now, held_until(record) }
end

-- How long a node is counted after it was last heard of.
local NODE_GONE_MS = 10000

function operations.announce(name)
  call('ZADD', name, now_text, argument())
  call('ZREMRANGEBYSCORE', name, '-inf', text(now - 1000 * NODE_GONE_MS))
  call('PEXPIRE', name, NODE_GONE_MS)
  return { 'nodes', call('ZCARD', name) }
end
-- A plan whose counters lie in several slots: each of them reserves its part under the plan's id and
-- the number of an attempt, and the node takes the attempt back everywhere unless all of them could.
-- The table of what a slot does is in testkit/src/sim/cross_slot, why it does so in
-- docs/decisions/006.
--
-- The record has a field more, `attempts`: 'holds' relies on what is charged, 'held' on an earlier
-- charge that has left its window since; a number is when the attempt was taken back.

-- Whether a use still counts, so that another attempt may rely on it.
local COUNTS = {
  log = function(use) return use.score + use.window > now end,
  slots = function(use) return slots_held(use) end,
  windowed = function(use) return use.at_end + use.window > now end,
  calendar = function(use) return use.at_end > now end,
  bucket = function(use) return use.pour[1] > now end,
}

local function counts(record)
  if record.state == 'settled' then
    return true
  end
  for _, use in ipairs(record.uses) do
    if use.amount > 0 and not COUNTS[use.kind](use) then
      return false
    end
  end
  return true
end

-- Forgets attempts that were taken back so long ago that nothing of them can be on its way.
local function without_old(attempts)
  local kept = {}
  for attempt, standing in pairs(attempts or {}) do
    if type(standing) == 'string' or standing + TOMBSTONE > now then
      kept[attempt] = standing
    end
  end
  return kept
end

-- What was charged before has left its window, and is no longer anybody's.
local function begin_anew(attempts)
  for attempt, standing in pairs(attempts) do
    if standing == 'holds' then
      attempts[attempt] = 'held'
    end
  end
end

local function any_holds(attempts)
  for _, standing in pairs(attempts) do
    if standing == 'holds' then
      return true
    end
  end
  return false
end

local function charge_anew(plan, before, attempts, attempt)
  local uses, skipped = write(plan, 'all', now, 0, base_of(plan))
  local record = new_record(plan, 'open', now, uses)
  begin_anew(attempts)
  attempts[attempt] = 'holds'
  record.attempts, record.expires = attempts, before and before.expires
  start_hold(record, plan.hold)
  touch(record)
  -- For as long as it counts: until then, the last attempt that is taken back gives it back.
  record.expires = math.max(record.expires, now + plan.window)
  save_record(plan.record, record)
  return allow(plan, now, held_until(record), false, skipped, true)
end

function operations.reserve(plan)
  local attempt = argument()
  local record = load_record(plan.record)
  local attempts = without_old(record and record.attempts)
  local standing = attempts[attempt]
  if type(standing) == 'number' then
    return { 'refused' }
  end
  if record and record.state ~= 'lapsed' then
    local other = is_other(record, plan, false)
    if other then
      return other
    elseif standing or counts(record) then
      attempts[attempt] = standing or 'holds'
      record.attempts = attempts
      touch(record)
      save_record(plan.record, record)
      open(plan)
      -- Told to the same attempt again, it is not a replay: whoever asked has asked once.
      return allow(plan, record.start, held_until(record), not standing)
    end
  end
  return open_known(plan) or not_now(plan) or charge_anew(plan, record, attempts, attempt)
end

function operations.take_back(name)
  local attempt = argument()
  local record = load_record(name)
    or { state = 'lapsed', start = now, slack = 0, window = 0, uses = {}, told = {} }
  local attempts = without_old(record.attempts)
  local held = attempts[attempt] == 'holds'
  attempts[attempt], record.attempts = now, attempts
  if held and record.state == 'open' and not any_holds(attempts) then
    give_back_all(record)
    record.state, record.uses = 'lapsed', {}
    record.hold_ttl, record.hold_until = nil, nil
  end
  touch(record)
  save_record(name, record)
  return { 'taken_back' }
end
-- Texts that all nodes share, as a hash: a name → when it ends (or nothing), a colon, the text.
-- `#version` is another one after every change, `#next` when the first of them ends.
local function shelf_write(name, version, next_end)
  -- By the clock, so that no version comes twice, not even where everything was lost in between.
  version = math.max(now, version + 1)
  call('HSET', name, '#version', text(version))
  if next_end then
    call('HSET', name, '#next', text(next_end))
  else
    call('HDEL', name, '#next')
  end
  return version
end

-- Everything but the two fields that are about the others: names, ends and texts.
local function shelf_all(name)
  local flat, all = call('HGETALL', name), {}
  for n = 1, #flat, 2 do
    if flat[n]:sub(1, 1) ~= '#' then
      local ends, body = flat[n + 1]:match('^(%d*):(.*)$')
      all[#all + 1] = { name = flat[n], ends = tonumber(ends), text = body }
    end
  end
  return all
end

local function first_end(all)
  local first
  for _, one in ipairs(all) do
    if one.ends and not (first and first <= one.ends) then
      first = one.ends
    end
  end
  return first
end

-- Takes away what has ended. Returns the version.
local function shelf_open(name)
  local known = call('HMGET', name, '#version', '#next')
  local version, next_end = tonumber(known[1]) or 0, tonumber(known[2])
  if not next_end or next_end > now then
    return version
  end
  local left = {}
  for _, one in ipairs(shelf_all(name)) do
    if one.ends and one.ends <= now then
      call('HDEL', name, one.name)
    else
      left[#left + 1] = one
    end
  end
  return shelf_write(name, version, first_end(left))
end

function operations.shelf_read(name)
  local known = number()
  local version = shelf_open(name)
  if version == known then
    return { 'same' }
  end
  local texts = {}
  for n, one in ipairs(shelf_all(name)) do
    texts[n] = one.text
  end
  return { 'shelf', now, version, texts }
end

function operations.shelf_put(name)
  local field, lasts, texts_max, body = argument(), number(), number(), argument()
  local version = shelf_open(name)
  if call('HEXISTS', name, field) == 0 and call('HLEN', name) >= texts_max + 2 then
    return { 'full' }
  end
  call('HSET', name, field, (lasts and text(now + lasts) or '') .. ':' .. body)
  shelf_write(name, version, first_end(shelf_all(name)))
  return { 'ended', 0, now }
end

function operations.shelf_remove(name)
  local field = argument()
  local version = shelf_open(name)
  if call('HDEL', name, field) == 0 then
    return { 'ended', 1, now }
  end
  shelf_write(name, version, first_end(shelf_all(name)))
  return { 'ended', 0, now }
end
-- Runs the operations of a batch, in their order.

-- These are about the plan that comes with them; the others about a record, which knows its own.
local PLANNED = {
  acquire = true, peek = true, book = true, claim = true, refund = true, close = true,
  reset = true, usage = true, reserve = true,
}

local answers = {}
while ARGV[at_arg + 1] do
  local after, after_key = at_arg + 1 + ARGV[at_arg + 1], at_key + ARGV[at_arg + 2]
  at_arg = at_arg + 2
  local name = argument()
  local done, answer = pcall(function()
    return operations[name](PLANNED[name] and read_plan() or key())
  end)
  if not done then
    -- One operation's error is its own: a key that holds something else, for instance.
    answer = { 'error', type(answer) == 'table' and answer.err or answer }
  end
  answers[#answers + 1] = answer
  at_arg, at_key = after, after_key
end
return answers
