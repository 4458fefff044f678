-- A token bucket, stored as a hash: `empty` is the time at which the bucket has drained, `latest`
-- the latest time at which something was or will be poured in, `back` the sum of all returned
-- amounts, as draining time.
--
-- The bucket drains in whole nanoseconds, and a double can't hold the nanoseconds since 1970. So a
-- time is a pair: microseconds and the remaining nanoseconds.
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

-- Subtracts one time from another, down to zero.
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

-- Returns the time that whole grains take to drain. Avoids products that a double can't hold.
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

-- Pours an amount in at `at`. Returns the new state.
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

-- Closes a gate: fills the bucket so that nothing fits before `until_at`. Returns the time at which
-- it opens.
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

-- Returns the level as the time that it takes to drain. The caller knows the drain rate.
function bucket.reading(c)
  return minus(c.state[1], c.state[2], now, 0)
end

-- Returns only what has not drained, because the rest has made room for others already. If
-- something is booked for later, it returns only what will not have drained by then. Amounts that
-- were returned since make a pour drain earlier, if it came before them.
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

-- Treats everything in the bucket as one pour.
function bucket.refund(c, amount)
  local use = { key = c.key, pour = bucket_load(c.key), drain = c.drain, grain = c.grain }
  bucket.give_back(use, amount, now)
end

function bucket.debt(use, amount)
  bucket_pour(use.key, now, amount, use.drain, use.grain)
end
