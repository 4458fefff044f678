-- A token bucket, stored as a hash: `empty` is the time at which the bucket has drained, `latest`
-- the latest time at which something was or will be poured in, `back` the sum of all returned
-- amounts, as draining time.
--
-- The bucket drains in whole nanoseconds, and a double can't hold the nanoseconds since 1970. So a
-- time is a pair: microseconds and the remaining nanoseconds.
--
-- A run is a series of bookings of one owner, with nothing of others in between. `run` names the
-- owner and the state after its last booking, `run_us` and `run_ns` are `empty` without the slack of
-- the run. Whatever else changes the state, also a node of an earlier version, ends the run, because
-- its name does not match any more: `empty` grows with everything that is poured in, and `back` with
-- everything that is returned. docs/decisions/022 has the reasons.
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

-- Returns the name of a run of an owner that has led to a state.
local function run_name(owner, state)
  return table.concat({ owner, text(state[1]), text(state[2]), text(state[4]), text(state[5]) }, ' ')
end

-- Returns the time at which the bucket has drained for the next work of an owner: without the slack
-- of the run, if it is that of the owner.
local function bucket_empty_for(key, state, owner)
  if owner then
    local run = call('HMGET', key, 'run', 'run_us', 'run_ns')
    if run[1] == run_name(owner, state) then
      return tonumber(run[2]), tonumber(run[3])
    end
  end
  return state[1], state[2]
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
  c.empty_us, c.empty_ns = bucket_empty_for(c.key, c.state, c.owner)
end

function bucket.earliest(c, from)
  if not (c.need <= c.limit) then
    return nil, 0
  end
  local room_us, room_ns = drained_in(grains_up(c.limit, c.grain), c.drain)
  room_us, room_ns = minus(room_us, room_ns, drained_in(grains_up(c.need, c.grain), c.drain))
  local start, rest = minus(c.empty_us, c.empty_ns, room_us, room_ns)
  return math.max(from, rest > 0 and start + 1 or start), 0
end

function bucket.take(c, use, start, slack)
  use.drain, use.grain = c.drain, c.grain
  if c.take > 0 then
    c.state = bucket_pour(c.key, start + slack, c.take, c.drain, c.grain)
    if c.owner then
      local us, ns = c.empty_us, c.empty_ns
      if before(us, ns, start, 0) then
        us, ns = start, 0
      end
      us, ns = plus(us, ns, drained_in(grains_up(c.take, c.grain), c.drain))
      call('HSET', c.key, 'run', run_name(c.owner, c.state), 'run_us', text(us), 'run_ns', text(ns))
    end
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
