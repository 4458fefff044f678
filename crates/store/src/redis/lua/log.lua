-- An exact log, stored as a sorted set with one entry per request. The score is the latest time at
-- which the request may be made. Leases (`slots`) are stored the same way, with their end as the
-- score and a window of zero.
local log, slots = {}, {}

local function log_add(key, base, amount, at, mark)
  local line, at_score = {}, score(key, at)
  for number = 0, amount - 1 do
    line[#line + 1] = at_score
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

-- With k = limit - need + 1, the plan fits when the k-th newest entry leaves the window.
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

-- Removes entries of a charge, last ones first, so that a charge that is returned in parts is
-- returned once. Returns how many of them were gone already.
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

-- A refund may remove any entry of an instant. If the entries of this charge are gone, others of
-- the same instant are removed.
function log.give_back(use, amount)
  local gone, at = log_remove(use, amount), score(use.key, use.score)
  if gone > 0 then
    log_remove_all(use.key, call('ZRANGEBYSCORE', use.key, at, at, 'LIMIT', 0, gone))
  end
end

function log.refund(c, amount)
  local since = '(' .. text(math.floor((now - c.window) / unit(c.key)))
  local oldest = call('ZRANGEBYSCORE', c.key, since, score(c.key, now), 'LIMIT', 0, text(amount))
  log_remove_all(c.key, oldest)
end

function log.debt(use, amount)
  log_add(use.key, use.base, amount, now, 'd')
  keep(use.key, now + 2 * use.window)
end

slots.open, slots.earliest, slots.reading = log.open, log.earliest, log.reading

-- Only the holder of a lease returns it.
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
