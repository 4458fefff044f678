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

local function acquire_recorded(plan, lapsed, attempt)
  local uses, skipped = write(plan, 'all', now, 0, base_of(plan))
  local record = new_record(plan, 'open', now, uses, lapsed and lapsed.told)
  -- Whoever was told to go is remembered for as long as before.
  record.expires = lapsed and lapsed.expires
  attempted(record, lapsed, attempt)
  start_hold(record, plan.hold)
  touch(record)
  save_record(plan.record, record)
  return allow(plan, now, held_until(record), false, skipped, true)
end

-- How long a refund is recognised that our own retry repeats.
local ONCE_MS = 2000
-- How long an admission without a record can be taken back: longer than a connection takes to be
-- made again.
local ONCE_KEPT_MS = 10000

-- Ids that nobody else can use again need no record: a mark with what was charged is enough for our
-- own retries, and to take it back. Whoever asked has asked once, so what they are told is not a
-- replay.
local function acquire_once(plan)
  if call('EXISTS', plan.record) == 1 then
    return allow(plan, now)
  end
  local uses, skipped = write(plan, 'all', now, 0, plan.id)
  call('SET', plan.record, cmsgpack.pack(uses), 'PX', ONCE_KEPT_MS)
  return allow(plan, now, nil, false, skipped, true)
end

function operations.acquire(plan)
  local attempt = argument()
  local record = plan.recorded and load_record(plan.record)
  if was_taken_back(record, attempt) then
    return { 'refused' }
  elseif record and record.state ~= 'lapsed' then
    local other = is_other(record, plan, false)
    if other then
      return other
    end
    rely(plan.record, record, attempt)
    return replay(plan, record)
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
  return plan.recorded and acquire_recorded(plan, record, attempt) or acquire_once(plan)
end

function operations.peek(plan)
  return open_known(plan) or not_now(plan)
    or allow(plan, now, nil, false, shadowed(plan, now, 0))
end

-- Writes a booking in the place of `before`. Returns its start and what was skipped; or nothing, and
-- then when it could start and which limit of which charge is why not before.
local function book_anew(plan, before, attempt)
  local start, charge, limit = plan_start(plan, true)
  local reaches = start and start <= now + plan.horizon and calendars_know(plan, start)
  if start ~= now and not reaches then
    return nil, nil, start, charge, limit
  end
  local generation = (before and before.generation or 0) + 1
  local uses, skipped = write(plan, 'bookable', start, plan.slack, base_of(plan, generation))
  local record = new_record(plan, 'booked', start, uses, before and before.told)
  record.generation, record.expires = generation, before and before.expires
  attempted(record, before, attempt)
  touch(record)
  save_record(plan.record, record)
  return start, skipped
end

function operations.book(plan)
  plan.stated = argument()
  local attempt = argument()
  local record = load_record(plan.record)
  if was_taken_back(record, attempt) then
    return { 'refused' }
  elseif record and record.state ~= 'lapsed' then
    local other = is_other(record, plan, true)
    if other then
      return other
    end
    rely(plan.record, record, attempt)
    return replay(plan, record)
  end
  local unknown = open_known(plan)
  if unknown then
    return unknown
  end
  local start, skipped, refused, charge, limit = book_anew(plan, record, attempt)
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

-- Whether a claim states other dimensions or another cost than its booking. A version that does not
-- keep what was stated leaves nothing to compare.
local function differs(record, plan)
  return record.stated and plan.stated and record.stated ~= plan.stated
end

function operations.claim(plan)
  local claimant = argument()
  plan.stated = argument()
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
  -- A reload may have changed what the same request is charged on.
  local reloaded = record.fingerprint ~= plan.fingerprint
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
  if record.state == 'booked' and in_time and not reloaded and is_open(plan) then
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
    -- Its claimant relies on it, whichever attempt has booked it.
    record.attempts = attempts_of(record)
    record.attempts[''] = 'holds'
    record.told[#record.told + 1] = claimant
    start_hold(record, plan.hold)
    touch(record)
    save_record(plan.record, record)
    return go(plan, record, false)
  end
  -- Late, somebody else's by now, closed, or charged by rules of before. What nobody has claimed was never used.
  if record.state == 'booked' then
    give_back_all(record)
    open(plan)
  end
  local start, _, refused, charge, limit = book_anew(plan, record, nil)
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
