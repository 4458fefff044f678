-- Reads the header of a call: `v2`, the number of its connection, and as the first key the fence of
-- its node. A call of version 1 has no header.
--
-- A node rolls back attempts that it has given up. Calls on one connection arrive in order, so a
-- call can only arrive after its rollback if it was sent on an older connection. The rollback
-- therefore raises the fence to its own connection number, and calls of older connections are
-- rejected. See testkit/src/sim/given_up and docs/decisions/016.
local first_arg, first_key, connection = 0, 0, nil
if ARGV[1] == 'v2' then
  first_arg, first_key, connection = 2, 1, tonumber(ARGV[2])
  if connection < (tonumber(call('GET', KEYS[1])) or 0) then
    return redis.error_reply('FENCED a newer connection of this node has rolled back calls of this one')
  end
end
