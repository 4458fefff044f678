-- A plan whose counters lie in several slots: each of them reserves its part under the plan's id and
-- the number of an attempt, and the node takes the attempt back everywhere unless all of them could.
-- The table of what a slot does is in testkit/src/sim/cross_slot, why it does so in
-- docs/decisions/006.
--
-- And how an attempt is taken back that was given up, in one slot or in several.

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
  local attempts = attempts_of(record)
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

-- Refuses what comes on an older connection of this node, for as long as it may be on its way.
local function raise_fence()
  if connection then
    call('SET', KEYS[1], text(connection), 'PX', text(TOMBSTONE / 1000))
  end
end

-- Takes back an attempt that has a record. What a claimant was told to use is its own.
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

-- Takes back an id that its node made and that has no record. Entries of logs bear its name; of all
-- else the mark knows what was charged.
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
