-- Asks Sluicegate about a request and sets txn.limit to allowed, limited or forbidden.
--
-- The dimensions are named in the URL: `@` names a header. Clients choose the values of headers and
-- nothing else.

local URL = "http://127.0.0.1:8080/v1/forward-auth?userId=@x-user&path=@x-forwarded-uri"
-- Longer than Sluicegate's own deadline of 45 ms, so that its answer arrives first.
local TIMEOUT_MS = 200
-- While Sluicegate itself does not answer: "allowed" lets requests pass, "forbidden" refuses them.
local WITHOUT_LIMITER = "allowed"

local function first(headers, name)
  local values = headers and headers[name]
  return values and values[0]
end

core.register_action("sluicegate", { "http-req" }, function(txn)
  local user = txn.sf:req_hdr("x-user")
  -- As the client wrote it: Sluicegate normalizes the path.
  local headers = { ["x-forwarded-uri"] = { txn.sf:path() } }
  -- headers["authorization"] = { "Bearer …" }      if listen.http requires a token
  if user ~= "" then
    headers["x-user"] = { user }
  end
  local response = core.httpclient():get{ url = URL, headers = headers, timeout = TIMEOUT_MS }
  local retry = first(response.headers, "retry-after")
  local limit = first(response.headers, "x-ratelimit-limit")
  local remaining = first(response.headers, "x-ratelimit-remaining")
  if limit then txn:set_var("txn.limit_limit", limit) end
  if remaining then txn:set_var("txn.limit_remaining", remaining) end
  if response.status >= 200 and response.status < 300 then
    txn:set_var("txn.limit", "allowed")
  elseif response.status == 429 then
    txn:set_var("txn.limit_retry", retry or "1")
    txn:set_var("txn.limit", "limited")
  elseif response.status >= 400 and response.status < 500 then
    txn:set_var("txn.limit", "forbidden")
  elseif retry then
    -- Sluicegate answers 503 with Retry-After: its outage policy refuses the request.
    txn:set_var("txn.limit_retry", retry)
    txn:set_var("txn.limit", "limited")
  else
    txn:set_var("txn.limit", WITHOUT_LIMITER)
  end
end)
