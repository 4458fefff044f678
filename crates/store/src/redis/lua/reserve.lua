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
