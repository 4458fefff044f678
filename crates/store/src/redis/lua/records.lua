-- What is remembered of an admission, packed under its id. See core/src/store.rs for its states.

-- How long a cancelled id is refused.
local TOMBSTONE = 60000000

-- The version of a record: a field that one before does not know may come to it, and is lost when
-- that one writes it anew. A record of a later version is left alone.
local VERSION = 2

-- The record of a key, unless its time is over.
local function load_record(name)
  local packed = call('GET', name)
  if not packed then
    return nil
  end
  local record = cmsgpack.unpack(packed)
  if (record.version or 1) > VERSION then
    error('this id was recorded by a later version of Sluicegate: upgrade this node')
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
    state = state, fingerprint = plan.fingerprint, stated = plan.stated, start = start,
    slack = plan.slack, keep = plan.keep, window = plan.window, uses = uses, told = told or {},
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

-- Every attempt that was ever made under an id, by what became of it: 'holds' relies on what is
-- charged, 'held' on an earlier charge that has left its window since; a number is when the attempt
-- was taken back. The empty name stands for everybody who is not known by name: the version before,
-- and whoever claims.
local function attempts_of(record)
  if not record then
    return {}
  end
  local live = record.state == 'open' or record.state == 'booked'
  local kept = {}
  for attempt, standing in pairs(record.attempts or (live and { [''] = 'holds' }) or {}) do
    -- So long ago that nothing of it can be on its way.
    if type(standing) == 'string' or standing + TOMBSTONE > now then
      kept[attempt] = standing
    end
  end
  return kept
end

-- What was charged before is no longer anybody's.
local function begin_anew(attempts)
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

local function was_taken_back(record, attempt)
  return record and record.attempts and type(record.attempts[attempt or '']) == 'number'
end

-- The first attempt of a new charge, in the place of a record that has lapsed.
local function attempted(record, lapsed, attempt)
  record.attempts = begin_anew(attempts_of(lapsed))
  record.attempts[attempt or ''] = 'holds'
end

-- Lets an attempt rely on what was charged before under its id.
local function rely(name, record, attempt)
  local attempts = attempts_of(record)
  if attempts[attempt or ''] ~= 'holds' then
    attempts[attempt or ''], record.attempts = 'holds', attempts
    save_record(name, record)
  end
end
