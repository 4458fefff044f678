-- Runs the operations of a batch, in their order.

-- These are about the plan that comes with them; the others about a record, which knows its own.
local PLANNED = {
  acquire = true, peek = true, book = true, claim = true, refund = true, close = true,
  reset = true, usage = true, reserve = true,
}

local answers = {}
while ARGV[at_arg + 1] do
  local after, after_key = at_arg + 1 + ARGV[at_arg + 1], at_key + ARGV[at_arg + 2]
  at_arg, last_arg = at_arg + 2, after
  local name = argument()
  local done, answer = pcall(function()
    return operations[name](PLANNED[name] and read_plan() or key())
  end)
  if not done then
    -- One operation's error is its own: a key that holds something else, for instance.
    answer = { 'error', type(answer) == 'table' and answer.err or answer }
  end
  answers[#answers + 1] = answer
  at_arg, at_key = after, after_key
end
return answers
