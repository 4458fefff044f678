-- The server's time, read once: two readings in one script can differ by milliseconds.
local seconds, micros = unpack(redis.call('TIME'))
local now_text = seconds .. ('000000'):sub(#micros + 1) .. micros
local now = tonumber(now_text)
