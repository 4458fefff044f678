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
  local ms = math.ceil((until_at - now) / 1000) + MARGIN_MS
  if call('PTTL', key) < ms then
    call('PEXPIRE', key, text(ms))
  end
end

-- Numbers are passed to Redis as text where possible: it would format a number as a double.

-- Removes the entries of a log up to `cutoff`. Returns the number of entries after it, the oldest
-- of them, and true if some old entries are left for the next call.
local function log_open(key, cutoff)
  local oldest = tonumber(call('ZRANGE', key, '0', '0', 'WITHSCORES')[2])
  if not oldest then
    return 0, nil
  end
  local count = call('ZCARD', key)
  if oldest > cutoff then
    return count, oldest
  end
  local gone = call('ZCOUNT', key, '-inf', text(cutoff))
  local purged = math.min(gone, PURGE_MAX)
  call('ZREMRANGEBYRANK', key, '0', purged - 1)
  local first = gone - purged
  local oldest_left = tonumber(call('ZRANGE', key, first, first, 'WITHSCORES')[2])
  return count - gone, oldest_left, first > 0
end

-- Returns the number of entries newer than `cutoff`, and the oldest of them.
local function log_since(key, cutoff)
  local after = '(' .. text(cutoff)
  local oldest = call('ZRANGEBYSCORE', key, after, '+inf', 'WITHSCORES', 'LIMIT', '0', '1')[2]
  return call('ZCOUNT', key, after, '+inf'), tonumber(oldest)
end

-- Returns the score of the k-th newest entry, including future ones.
local function log_newest(key, k)
  return tonumber(call('ZRANGE', key, -k, -k, 'WITHSCORES')[2])
end

-- Returns the name of entry `number` of a charge; the first entry is named after the charge.
local function member(base, number)
  return number == 0 and base or base .. ':' .. number
end
