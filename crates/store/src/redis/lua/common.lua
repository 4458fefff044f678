-- Helpers of all scripts. All times are whole microseconds below 2^53.
local call = redis.call
local tonumber, type, unpack = tonumber, type, unpack
local MAX = 9007199254740991

-- Extra lifetime of a key. Expiry only frees memory; every decision compares the stored times.
local MARGIN_MS = 5000
-- Maximum number of entries that one call removes: removing 100,000 would take longer than a
-- timeout.
local PURGE_MAX = 256

-- Formats a whole number: tostring would round a time in microseconds.
local function text(number)
  return string.format('%.0f', number)
end

-- Extends the expiry of a key to `until_at`; never shortens it.
local function keep(key, until_at)
  local ms = math.max(math.ceil((until_at - now) / 1000) + MARGIN_MS, TTL_MIN_MS)
  if call('PTTL', key) < ms then
    call('PEXPIRE', key, text(ms))
  end
end

-- Numbers are passed to Redis as text where possible: it would format a number as a double.

-- The scores of a log are microseconds. A log under a literal key, which has no '#' in its name, has
-- milliseconds: other programs read and write it. They are rounded up, so an entry never leaves its
-- window too early. All functions below take and return microseconds.
local units = {}

local function unit(key)
  local known = units[key]
  if not known then
    known = string.find(key, '#', 1, true) and 1 or 1000
    units[key] = known
  end
  return known
end

-- Returns the score of an instant in a log.
local function score(key, at)
  return text(math.ceil(at / unit(key)))
end

-- Scores from here on are microseconds: as milliseconds they would be after the year 5000.
local MICROS_MIN = 100000000000000

-- Converts entries that an earlier version wrote in microseconds under a literal key. Otherwise they
-- would stay in the window for ever.
local function to_millis(key)
  local newest = tonumber(call('ZRANGE', key, '-1', '-1', 'WITHSCORES')[2])
  while newest and newest >= MICROS_MIN do
    local old = call('ZRANGEBYSCORE', key, text(MICROS_MIN), '+inf', 'WITHSCORES', 'LIMIT', '0', '1000')
    local line = {}
    for number = 1, #old, 2 do
      line[number], line[number + 1] = score(key, tonumber(old[number + 1])), old[number]
    end
    if #line == 0 then
      return
    end
    call('ZADD', key, unpack(line))
    newest = #line == 2000 and newest
  end
end

-- Removes the entries of a log up to `cutoff`. Returns the number of entries after it, the oldest
-- of them, and true if some old entries are left for the next call.
local function log_open(key, cutoff)
  local micros = unit(key)
  if micros ~= 1 then
    to_millis(key)
    cutoff = math.floor(cutoff / micros)
  end
  local oldest = tonumber(call('ZRANGE', key, '0', '0', 'WITHSCORES')[2])
  if not oldest then
    return 0, nil
  end
  local count = call('ZCARD', key)
  if oldest > cutoff then
    return count, oldest * micros
  end
  local gone = call('ZCOUNT', key, '-inf', text(cutoff))
  local purged = math.min(gone, PURGE_MAX)
  call('ZREMRANGEBYRANK', key, '0', purged - 1)
  local first = gone - purged
  local oldest_left = tonumber(call('ZRANGE', key, first, first, 'WITHSCORES')[2])
  return count - gone, oldest_left and oldest_left * micros, first > 0
end

-- Returns the number of entries newer than `cutoff`, and the oldest of them.
local function log_since(key, cutoff)
  local micros = unit(key)
  local after = '(' .. text(math.floor(cutoff / micros))
  local oldest = call('ZRANGEBYSCORE', key, after, '+inf', 'WITHSCORES', 'LIMIT', '0', '1')[2]
  return call('ZCOUNT', key, after, '+inf'), oldest and tonumber(oldest) * micros
end

-- Returns the score of the k-th newest entry, including future ones.
local function log_newest(key, k)
  return tonumber(call('ZRANGE', key, -k, -k, 'WITHSCORES')[2]) * unit(key)
end

-- Returns the name of entry `number` of a charge; the first entry is named after the charge.
local function member(base, number)
  return number == 0 and base or base .. ':' .. number
end
