-- The operations of the store. core/src/store.rs has the table of what each does in which state.
local operations = {}

local function allow(plan, start, until_at, replayed, skipped, written)
  local shadows = {}
  for n = 1, #plan do
    if skipped and skipped[n] then
      shadows[#shadows + 1] = n - 1
    end
  end
  local reply = { 'allow', now, start, until_at or '', replayed and 1 or 0, shadows }
  return put_readings(reply, plan, written)
end

-- Returns the denial of a plan that can't start now and can't be booked.
local function deny(plan, start, charge, limit)
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

-- Returns the error if a plan can't be the replay of its record, or nil if it can.
local function replay_error(record, plan, booked)
  if record.state == 'cancelled' then
    return { 'gone' }
  elseif (record.state == 'booked') ~= booked or record.fingerprint ~= plan.fingerprint then
    return { 'conflict' }
  elseif record.leased and not holds_leases(record) then
    return { 'lost' }
  end
end

-- Opens the counters of a plan. Returns an error if the plan's calendar periods do not cover the
-- present.
local function open_plan(plan)
  if not calendars_cover(plan, now) then
    return { 'skew' }
  end
  open(plan)
end

-- Returns when the first missing lease is available, and which one it is.
local function unavailable_lease(plan)
  for n, c in ipairs(plan) do
    if not c.bookable and not c.shadow then
      local at, which = earliest(c, now, 0)
      if at ~= now then
        return at or MAX, n - 1, which
      end
    end
  end
end

-- Returns the denial of an open plan that can't start now, or within its lead; or nil and its start.
local function denial(plan)
  local start, charge, limit = plan_start(plan, 'all', now)
  local is_ahead = start and start > now and start <= after_lead(plan)
    and start <= now + plan.horizon and calendars_cover(plan, start)
    -- A lease is taken now, so it has to be free now.
    and not unavailable_lease(plan)
  if start ~= now and not is_ahead then
    return deny(plan, start, charge, limit)
  end
  return nil, start
end

local function acquire_recorded(plan, start, lapsed, attempt)
  local uses, skipped = write(plan, 'all', start, base_of(plan))
  local record = new_record(plan, 'open', start, uses, lapsed and lapsed.told)
  -- Claimants that were allowed to start stay known for as long as before.
  record.expires = lapsed and lapsed.expires
  record_attempt(record, lapsed, attempt)
  start_hold(record, plan.hold)
  touch(record)
  save_record(plan.record, record)
  return allow(plan, start, held_until(record), false, skipped, true)
end

-- Time for which a retried refund is recognised.
local ONCE_MS = 2000
-- Time for which an admission without a record can be rolled back: longer than a reconnect takes.
local ONCE_KEPT_MS = 10000

-- An id that only this node uses needs no record: a marker with the charges is enough for retries
-- and rollbacks. Returns the time at which an earlier attempt wrote its charges, or nil if none did.
-- The marker of the previous version is empty, and so is that of a plan of shadow rules that all
-- were skipped: the time is then not known, or of no use.
local function charged_once(plan)
  local mark = call('GET', plan.record)
  if mark then
    local first = mark ~= '' and cmsgpack.unpack(mark)[1]
    return first and first.at or now
  end
end

-- Its caller has asked once, so the reply to a retry is not a replay. The start is the time of the
-- charge, because the decision log has to show what the counter contains.
local function acquire_once(plan)
  local charged = charged_once(plan)
  if charged then
    return allow(plan, charged)
  end
  local uses, skipped = write(plan, 'all', now, plan.id)
  call('SET', plan.record, cmsgpack.pack(uses), 'PX', ONCE_KEPT_MS)
  return allow(plan, now, nil, false, skipped, true)
end

function operations.acquire(plan)
  local attempt = argument()
  read_pacing(plan)
  local record = plan.recorded and load_record(plan.record)
  if was_rolled_back(record, attempt) then
    return { 'refused' }
  elseif record and record.state ~= 'lapsed' then
    local problem = replay_error(record, plan, false)
    if problem then
      return problem
    end
    add_attempt(plan.record, record, attempt)
    return replay(plan, record)
  end
  local unknown = open_plan(plan)
  if unknown then
    return unknown
  end
  local refused, start = denial(plan)
  if refused then
    local charged = not plan.recorded and charged_once(plan)
    return charged and allow(plan, charged) or refused
  end
  return plan.recorded and acquire_recorded(plan, start, record, attempt) or acquire_once(plan)
end

function operations.peek(plan)
  read_pacing(plan)
  local unknown = open_plan(plan)
  if unknown then
    return unknown
  end
  local refused, start = denial(plan)
  return refused or allow(plan, start, nil, false, shadowed(plan, 'all', start))
end

-- Writes a booking that replaces `before`. Returns its start and the skipped charges; or nil, and
-- then the earliest start and the charge and limit that prevent an earlier one. The start of paced
-- work leaves time for its claim.
local function write_booking(plan, before, attempt)
  local from = after_lead(plan)
  local start, charge, limit = plan_start(plan, 'bookable', from)
  local reaches = start and start <= now + plan.horizon and calendars_cover(plan, start)
  if start ~= from and not reaches then
    return nil, nil, start, charge, limit
  end
  local generation = (before and before.generation or 0) + 1
  local uses, skipped = write(plan, 'bookable', start, base_of(plan, generation))
  local record = new_record(plan, 'booked', start, uses, before and before.told)
  record.generation, record.expires = generation, before and before.expires
  record_attempt(record, before, attempt)
  touch(record)
  save_record(plan.record, record)
  return start, skipped
end

function operations.book(plan)
  plan.stated = argument()
  local attempt = argument()
  read_pacing(plan)
  local record = load_record(plan.record)
  if was_rolled_back(record, attempt) then
    return { 'refused' }
  elseif record and record.state ~= 'lapsed' then
    local problem = replay_error(record, plan, true)
    if problem then
      return problem
    end
    add_attempt(plan.record, record, attempt)
    return replay(plan, record)
  end
  local unknown = open_plan(plan)
  if unknown then
    return unknown
  end
  local start, skipped, refused, charge, limit = write_booking(plan, record, attempt)
  if not start then
    return deny(plan, refused, charge, limit)
  end
  return allow(plan, start, start + plan.slack, false, skipped, true)
end

-- Returns true if every gate of a plan is open at a time.
local function gates_are_open(plan, at)
  for _, c in ipairs(plan) do
    if c.gate and earliest(c, at, 0) ~= at then
      return false
    end
  end
  return true
end

local function go(plan, record, replayed)
  local reply = allow(plan, record.start, held_until(record), replayed, nil, not replayed)
  reply[1] = 'go'
  table.insert(reply, 2, record.start + record.slack)
  return reply
end

local function was_started_by(record, claimant)
  for _, other in ipairs(record.told) do
    if other == claimant then
      return true
    end
  end
  return false
end

-- Returns true if a claim states other dimensions or another cost than its booking. Older versions
-- do not store what was stated, so there is nothing to compare.
local function differs(record, plan)
  return record.stated and plan.stated and record.stated ~= plan.stated
end

function operations.claim(plan)
  local claimant = argument()
  plan.stated = argument()
  read_pacing(plan)
  local record = load_record(plan.record)
  if not record or record.state == 'lapsed' then
    return { 'unknown' }
  elseif record.state == 'cancelled' then
    return { 'gone' }
  elseif record.state ~= 'booked' and not (record.state == 'open' and record.claimant) then
    return { 'conflict' }
  elseif differs(record, plan) then
    return { 'differs' }
  end
  open(plan)
  -- A reload of the rules may have changed the counters of the same request.
  local reloaded = record.fingerprint ~= plan.fingerprint
  local in_time = now <= record.start + record.slack
  if was_started_by(record, claimant) then
    if record.claimant ~= claimant or not in_time then
      return { 'spent' }
    end
    return go(plan, record, true)
  elseif after_lead(plan) < record.start then
    return { 'early', now, record.start }
  elseif not calendars_cover(plan, now) then
    -- Checked before anything changes: a plan of another calendar period can't be booked again.
    return { 'skew' }
  end
  local is_open = gates_are_open(plan, math.max(now, record.start))
  if record.state == 'booked' and in_time and not reloaded and is_open then
    local at, charge, limit = unavailable_lease(plan)
    if at then
      return deny(plan, at, charge, limit)
    end
    local leases = write(plan, 'leases', now, base_of(plan, record.generation))
    record.leased = #leases > 0
    for _, use in ipairs(leases) do
      record.uses[#record.uses + 1] = use
    end
    record.state, record.claimant = 'open', claimant
    -- The claimant relies on the charge, whichever attempt booked it.
    record.attempts = attempts_of(record)
    record.attempts[''] = 'holds'
    record.told[#record.told + 1] = claimant
    start_hold(record, plan.hold)
    touch(record)
    save_record(plan.record, record)
    return go(plan, record, false)
  end
  -- The booking is late, claimed by another claimant, closed by a gate, or charged under old rules.
  -- An unclaimed booking was never used, so its charges are returned.
  if record.state == 'booked' then
    give_back_all(record)
    open(plan)
  end
  local start, _, refused, charge, limit = write_booking(plan, record, nil)
  if start then
    return { 'rebooked', now, start }
  end
  record.state, record.uses = 'lapsed', {}
  record.claimant, record.hold_ttl, record.hold_until = nil, nil, nil
  save_record(plan.record, record)
  -- A limit that was lowered below what this one piece of work needs has no earliest start.
  return deny(plan, refused or MAX, charge, limit)
end

function operations.refund(plan)
  open(plan)
  -- A retry must not refund again.
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
        -- The empty counter stays for as long as one of its charges could still be settled.
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

-- Reply for a record whose state does not allow the operation.
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

-- Returns the reply if a record can't be settled or is settled already, or nil if it can be
-- settled.
local function settle_problem(record, cost, requests_max, actual)
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
  return settle_problem(load_record(name), read_cost()) or FIRST
end

function operations.settle(name)
  local cost, requests_max, actual = read_cost()
  local record = load_record(name)
  local problem = settle_problem(record, cost, requests_max, actual)
  if problem then
    return problem
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

-- Time for which a node counts after its last announcement.
local NODE_GONE_MS = 10000

function operations.announce(name)
  call('ZADD', name, now_text, argument())
  call('ZREMRANGEBYSCORE', name, '-inf', text(now - 1000 * NODE_GONE_MS))
  call('PEXPIRE', name, NODE_GONE_MS)
  return { 'nodes', call('ZCARD', name) }
end
