-- Plans whose counters lie in several slots. Each slot reserves its part under the plan's id and
-- the number of the attempt, and the node rolls the attempt back everywhere unless all slots
-- succeed. testkit/src/sim/cross_slot has the table of what a slot does, docs/decisions/006 the
-- reasons.
--
-- Also the rollback of attempts, in one slot or in several.

-- Return true if a charge still counts, so that another attempt may rely on it.
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

local function charge_again(plan, before, attempts, attempt)
  local uses, skipped = write(plan, 'all', now, base_of(plan))
  local record = new_record(plan, 'open', now, uses)
  release_all(attempts)
  attempts[attempt] = 'holds'
  record.attempts, record.expires = attempts, before and before.expires
  start_hold(record, plan.hold)
  touch(record)
  -- Kept for as long as it counts: until then, the rollback of the last attempt returns the charge.
  record.expires = math.max(record.expires, now + plan.window)
  save_record(plan.record, record)
  return allow(plan, now, held_until(record), false, skipped, true)
end

function operations.reserve(plan)
  local attempt = argument()
  local record = load_record(plan.record)
  local attempts = attempts_of(record)
  local standing = attempts[attempt]
  if type(standing) == 'number' then
    return { 'refused' }
  end
  if record and record.state ~= 'lapsed' then
    local problem = replay_error(record, plan, false)
    if problem then
      return problem
    elseif standing or counts(record) then
      attempts[attempt] = standing or 'holds'
      record.attempts = attempts
      touch(record)
      save_record(plan.record, record)
      open(plan)
      -- A repeated reply to the same attempt is not a replay: its caller has asked once.
      return allow(plan, record.start, held_until(record), not standing)
    end
  end
  return open_plan(plan) or (denial(plan)) or charge_again(plan, record, attempts, attempt)
end

-- Rejects calls on older connections of this node, for as long as they may arrive.
local function raise_fence()
  if connection then
    call('SET', KEYS[1], text(connection), 'PX', text(TOMBSTONE / 1000))
  end
end

-- Rolls back an attempt that has a record. Charges that a claimant may have used stay.
function operations.take_back(name)
  raise_fence()
  local attempt = argument()
  local record = load_record(name)
    or { state = 'lapsed', start = now, slack = 0, window = 0, uses = {}, told = {} }
  local attempts = attempts_of(record)
  local held = attempts[attempt] == 'holds'
  attempts[attempt], record.attempts = now, attempts
  local unused = record.state == 'booked' or (record.state == 'open' and not record.claimant)
  if held and unused and not any_holds(attempts) then
    give_back_all(record)
    record.state, record.uses = 'lapsed', {}
    record.hold_ttl, record.hold_until = nil, nil
  end
  touch(record)
  save_record(name, record)
  return { 'taken_back' }
end

-- Rolls back an id without a record, which its node made. The entries of logs are named after the
-- id; for all other counters the marker lists the charges.
function operations.take_back_once(name)
  raise_fence()
  local mark = call('GET', name)
  if mark and mark ~= '' then
    for _, use in ipairs(cmsgpack.unpack(mark)) do
      give_back(use, use.amount, now)
    end
    call('DEL', name)
  end
  local id = argument()
  for _ = 1, number() do
    local counter, members = key(), {}
    for entry = 1, number() do
      members[entry] = member(id, entry - 1)
    end
    log_remove_all(counter, members)
  end
  return { 'taken_back' }
end
