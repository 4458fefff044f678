-- The records of admissions, packed and stored under their ids. core/src/store.rs defines their
-- states.

-- Time for which a cancelled id is refused.
local TOMBSTONE = 60000000

-- Version of the record format. An older version may read a record with fields that it does not
-- know, and drops them when it writes the record. A record of a newer version is rejected.
local VERSION = 2

-- Returns the record under a key, unless it has expired.
local function load_record(name)
  local packed = call('GET', name)
  if not packed then
    return nil
  end
  local record = cmsgpack.unpack(packed)
  if (record.version or 1) > VERSION then
    error('this id was recorded by a newer version of Sluicegate: upgrade this node')
  end
  if record.expires > now then
    return record
  end
end

local function save_record(name, record)
  local ms = math.ceil((record.expires - now) / 1000) + MARGIN_MS
  record.version = VERSION
  call('SET', name, cmsgpack.pack(record), 'PX', text(ms))
end

-- Returns the end of each lease and of the hold.
local function ends(record)
  local found = {}
  for _, use in ipairs(record.uses) do
    found[#found + 1] = use.lease
  end
  found[#found + 1] = record.hold_until
  return found
end

-- Returns the first end of a lease or of the hold, if there is one.
local function held_until(record)
  local found = ends(record)
  return #found > 0 and math.min(unpack(found)) or nil
end

-- Keeps a record for as long as a retry, a settlement or a late call can arrive.
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
    state = state, fingerprint = plan.fingerprint, stated = plan.stated, start = start,
    slack = plan.slack, keep = plan.keep, window = plan.window, uses = uses, told = told or {},
  }
  for _, use in ipairs(uses) do
    record.leased = record.leased or use.lease ~= nil
  end
  return record
end

-- Starts the hold of a record, and schedules the refund of every charge that has one.
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

-- Returns true if an admission still has all the leases that it was given.
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

-- Returns the amount of a charge that is still counted: zero if it was refunded automatically.
local function still_charged(record, use)
  local due = use.refunds and record.hold_until and record.hold_until <= now
  return due and 0 or use.amount
end

-- Removes the scheduled refund of a charge, after running it if it is due.
local function settle_hold(use)
  if use.holds then
    give_back_due(use.holds)
    unhold(use)
  end
end

-- Gives all charges of a record back to their counters.
local function give_back_all(record)
  for _, use in ipairs(record.uses) do
    settle_hold(use)
    give_back(use, still_charged(record, use), now)
  end
end

-- Returns the base name for the entries of an admission, different for each. A booking can be
-- replaced in the same microsecond, so its generation is part of the name.
local function base_of(plan, generation)
  local base = plan.id .. string.format('%x', now)
  return generation and generation > 0 and base .. 'g' .. generation or base
end

-- Returns all attempts under an id by their standing: 'holds' relies on the present charge, 'held'
-- relied on an earlier charge that has left its window; a number is the time at which the attempt
-- was rolled back. The empty name stands for callers without an attempt number: the previous
-- version, and claimants.
local function attempts_of(record)
  if not record then
    return {}
  end
  local live = record.state == 'open' or record.state == 'booked'
  local kept = {}
  for attempt, standing in pairs(record.attempts or (live and { [''] = 'holds' }) or {}) do
    -- Older attempts are dropped: no call of them can arrive any more.
    if type(standing) == 'string' or standing + TOMBSTONE > now then
      kept[attempt] = standing
    end
  end
  return kept
end

-- Marks all attempts as not relying on the charge any more.
local function release_all(attempts)
  for attempt, standing in pairs(attempts) do
    if standing == 'holds' then
      attempts[attempt] = 'held'
    end
  end
  return attempts
end

local function any_holds(attempts)
  for _, standing in pairs(attempts) do
    if standing == 'holds' then
      return true
    end
  end
  return false
end

local function was_rolled_back(record, attempt)
  return record and record.attempts and type(record.attempts[attempt or '']) == 'number'
end

-- Records the first attempt of a new charge, which replaces a lapsed record.
local function record_attempt(record, lapsed, attempt)
  record.attempts = release_all(attempts_of(lapsed))
  record.attempts[attempt or ''] = 'holds'
end

-- Records that an attempt relies on the earlier charge under its id.
local function add_attempt(name, record, attempt)
  local attempts = attempts_of(record)
  if attempts[attempt or ''] ~= 'holds' then
    attempts[attempt or ''], record.attempts = 'holds', attempts
    save_record(name, record)
  end
end
