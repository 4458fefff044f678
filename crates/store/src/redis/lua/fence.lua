-- The head of a call: `v2`, the number of the connection that it came on, and before all other keys
-- the fence of its node. A call of version 1 has no head.
--
-- A node takes back what it has given up. On one connection everything arrives in order, so what is
-- taken back can only arrive later if it was sent on an older connection; the take-back raises the
-- fence to its own. See testkit/src/sim/given_up and docs/decisions/016.
local first_arg, first_key, connection = 0, 0, nil
if ARGV[1] == 'v2' then
  first_arg, first_key, connection = 2, 1, tonumber(ARGV[2])
  if connection < (tonumber(call('GET', KEYS[1])) or 0) then
    return redis.error_reply('FENCED what was sent on this connection may have been taken back')
  end
end
