-- The reservations that are not settled yet, for people: a hash id → text, and two sorted sets of the
-- ids, by the end of the hold and by the time from which on nothing of them is charged.

-- Returns the name of the end of an unknown reservation in the sorted set of ends.
local function end_name(id)
  return '#' .. id
end

local function reservation_remove(list, id)
  call('HDEL', list.texts, id)
  call('ZREM', list.dues, id)
  call('ZREM', list.ends, id)
end

-- Opens the list and removes reservations and remembered ends whose time is over.
local function reservations_open(texts)
  local list = { texts = texts, dues = key(), ends = key() }
  for _, id in ipairs(call('ZRANGEBYSCORE', list.ends, '-inf', text(now), 'LIMIT', '0', PURGE_MAX * 4)) do
    reservation_remove(list, id)
  end
  return list
end

function operations.reservations_apply(texts)
  local list, ends_at, rejected = reservations_open(texts), now, 0
  local entries_max, remembered_until = number(), now + number()
  local ended, renewed, opened = number(), number(), number()
  for _ = 1, ended do
    local id = argument()
    if call('HEXISTS', list.texts, id) == 1 then
      reservation_remove(list, id)
    else
      -- The node that made it may report it later than this.
      ends_at = math.max(ends_at, remembered_until)
      call('ZADD', list.ends, text(remembered_until), end_name(id))
    end
  end
  for _ = 1, renewed do
    local id, due = argument(), number()
    local known = tonumber(call('ZSCORE', list.dues, id))
    if known and known < due then
      call('ZADD', list.dues, text(due), id)
    end
  end
  local left = entries_max - call('HLEN', list.texts)
  for _ = 1, opened do
    local id, due, ends, body = argument(), number(), number(), argument()
    local has_ended = call('ZSCORE', list.ends, end_name(id))
    local known = call('HEXISTS', list.texts, id) == 1
    if not has_ended and not known and left <= 0 then
      rejected = rejected + 1
    elseif not has_ended then
      left = known and left or left - 1
      ends_at = math.max(ends_at, ends)
      call('HSET', list.texts, id, body)
      call('ZADD', list.dues, text(due), id)
      call('ZADD', list.ends, text(ends), id)
    end
  end
  for _, name in pairs(list) do
    keep(name, ends_at)
  end
  return { 'reservations', now, rejected, 0, {} }
end

function operations.reservations_read(texts)
  local list, max = reservations_open(texts), number()
  local found = {}
  for _, id in ipairs(call('ZRANGEBYSCORE', list.dues, '-inf', text(now), 'LIMIT', '0', text(max))) do
    found[#found + 1] = call('HGET', list.texts, id) or nil
  end
  local count = call('ZCOUNT', list.dues, '-inf', text(now))
  return { 'reservations', now, count, call('HLEN', list.texts), found }
end

function operations.reservations_find(texts)
  local list = reservations_open(texts)
  return { 'reservations', now, 0, 0, { call('HGET', list.texts, argument()) or nil } }
end
