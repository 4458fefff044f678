-- Runs the operations of a batch, in order.

-- Operations that carry a plan. All others work on a record, which lists its own charges.
local WITH_PLAN = {
  acquire = true, peek = true, book = true, claim = true, refund = true, close = true,
  reset = true, usage = true, reserve = true,
}

local replies = {}
while ARGV[at_arg + 1] do
  local after, after_key = at_arg + 1 + ARGV[at_arg + 1], at_key + ARGV[at_arg + 2]
  at_arg, last_arg = at_arg + 2, after
  local name = argument()
  local done, reply = pcall(function()
    return operations[name](WITH_PLAN[name] and read_plan() or key())
  end)
  if not done then
    -- An error concerns only its own operation, for example a key of another type.
    reply = { 'error', type(reply) == 'table' and reply.err or reply }
  end
  replies[#replies + 1] = reply
  at_arg, at_key = after, after_key
end
return replies
