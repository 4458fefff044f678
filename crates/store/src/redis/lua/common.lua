-- What both scripts stand on. All times are whole microseconds, below 2^53.
local call = redis.call
local tonumber, type, unpack = tonumber, type, unpack
local MAX = 9007199254740991

-- How much longer than needed a key lives. Expiry only reclaims memory: every decision looks at
-- the instants themselves.
local MARGIN_MS = 5000
-- The most entries that one call forgets: removing 100,000 would take longer than a time-out.
local PURGE_MAX = 256

-- A whole number as text: tostring would round a microsecond time.
local function text(number)
  return string.format('%.0f', number)
end

-- Lets a key live until then, and never less than it was told before.
local function keep(key, until_at)
  local ms = math.ceil((until_at - now) / 1000) + MARGIN_MS
  if call('PTTL', key) < ms then
    call('PEXPIRE', key, text(ms))
  end
end

-- Numbers are given to Redis as text where that can be: it would print each as a double.

-- Forgets what a log holds from `cutoff` or before. Returns how many are left, the oldest, and
-- whether some could not be forgotten yet.
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

-- How many entries are newer than `cutoff`, and the oldest of them.
local function log_since(key, cutoff)
  local after = '(' .. text(cutoff)
  local oldest = call('ZRANGEBYSCORE', key, after, '+inf', 'WITHSCORES', 'LIMIT', '0', '1')[2]
  return call('ZCOUNT', key, after, '+inf'), tonumber(oldest)
end

-- The score of the k-th newest entry, future ones included.
local function log_newest(key, k)
  return tonumber(call('ZRANGE', key, -k, -k, 'WITHSCORES')[2])
end

-- The member of entry `number` of a use; the first is the use itself.
local function member(base, number)
  return number == 0 and base or base .. ':' .. number
end
