-- The overrides that all nodes share, stored as a hash: name → expiry (or nothing), a colon, the
-- text. `#version` changes with every write, `#next` is the first expiry, or earlier.
local function overrides_write(name, version, next_end)
  -- Taken from the clock, so that no version repeats, even after a loss of data.
  version = math.max(now, version + 1)
  call('HSET', name, '#version', text(version))
  if next_end then
    call('HSET', name, '#next', text(next_end))
  else
    call('HDEL', name, '#next')
  end
  return version
end

-- Returns all overrides, without the two fields that describe the hash.
local function overrides_all(name)
  local flat, all = call('HGETALL', name), {}
  for n = 1, #flat, 2 do
    if flat[n]:sub(1, 1) ~= '#' then
      local ends, body = flat[n + 1]:match('^(%d*):(.*)$')
      all[#all + 1] = { name = flat[n], ends = tonumber(ends), text = body }
    end
  end
  return all
end

local function first_end(all)
  local first
  for _, one in ipairs(all) do
    if one.ends and not (first and first <= one.ends) then
      first = one.ends
    end
  end
  return first
end

-- Removes expired overrides. Returns the version and the first expiry.
local function overrides_open(name)
  local known = call('HMGET', name, '#version', '#next')
  local version, next_end = tonumber(known[1]) or 0, tonumber(known[2])
  if not next_end or next_end > now then
    return version, next_end
  end
  local left = {}
  for _, one in ipairs(overrides_all(name)) do
    if one.ends and one.ends <= now then
      call('HDEL', name, one.name)
    else
      left[#left + 1] = one
    end
  end
  next_end = first_end(left)
  return overrides_write(name, version, next_end), next_end
end

function operations.shelf_read(name)
  local known = number()
  local version = overrides_open(name)
  if version == known then
    return { 'same' }
  end
  local texts = {}
  for n, one in ipairs(overrides_all(name)) do
    texts[n] = one.text
  end
  return { 'shelf', now, version, texts }
end

function operations.shelf_put(name)
  local field, lasts, texts_max, body = argument(), number(), number(), argument()
  local version, next_end = overrides_open(name)
  if call('HEXISTS', name, field) == 0 and call('HLEN', name) >= texts_max + 2 then
    return { 'full' }
  end
  local ends = lasts and now + lasts
  call('HSET', name, field, (ends and text(ends) or '') .. ':' .. body)
  -- The other texts are not read: there may be a hundred of 64 KB. If the first expiry was that of the text
  -- that this one replaces, it is too early, and `overrides_open` then finds the next one.
  if next_end and ends then
    ends = math.min(next_end, ends)
  end
  overrides_write(name, version, ends or next_end)
  return { 'ended', 0, now }
end

function operations.shelf_remove(name)
  local field = argument()
  local version = overrides_open(name)
  if call('HDEL', name, field) == 0 then
    return { 'ended', 1, now }
  end
  overrides_write(name, version, first_end(overrides_all(name)))
  return { 'ended', 0, now }
end
