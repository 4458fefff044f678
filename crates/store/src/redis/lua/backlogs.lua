-- The backlogs of all queues that wait for the same counters, stored as a hash: queue -> expiry, a
-- colon, the backlog as text.

-- Stores the backlog of one queue, and returns those of all others. An empty text removes it.
function operations.backlogs(name)
  local queue, lasts, backlog = argument(), number(), argument()
  local flat, others = call('HGETALL', name), {}
  for n = 1, #flat, 2 do
    local expires, other = flat[n + 1]:match('^(%d+):(.*)$')
    if not expires or tonumber(expires) <= now then
      call('HDEL', name, flat[n])
    elseif flat[n] ~= queue then
      others[#others + 1] = other
    end
  end
  if backlog == '' then
    call('HDEL', name, queue)
  else
    call('HSET', name, queue, text(now + lasts) .. ':' .. backlog)
    keep(name, now + lasts)
  end
  return { 'backlogs', others }
end
