"""Constraints on valid requests that the OpenAPI document can't express."""

import schemathesis


def adds_up(cost):
    """Tokens with a price of their own are part of the input or output tokens."""
    count = lambda name: cost[name] if isinstance(cost.get(name), (int, float)) else 0
    sent = max(count("inputTokens"), count("queryTokens") + count("contextTokens"))
    if not any(name in cost for name in ("inputTokens", "queryTokens", "contextTokens")):
        sent = count("inputChars") // 3
    answered = max(count(name) for name in ("outputTokens", "maxTokens", "maxOutputTokens"))
    return (
        count("cachedInputTokens") + count("cacheWriteTokens") <= sent
        and count("reasoningTokens") <= answered
    )


@schemathesis.hook
def filter_body(context, body):
    """Limits with the same key share a counter, so they must be the same limit. A list has one id."""
    requests = body if isinstance(body, list) else [body]
    # The id of a list is that of its first request.
    if any(isinstance(later, dict) and later.get("id") is not None for later in requests[1:]):
        return False
    limits = {}
    for request in requests:
        if not isinstance(request, dict):
            continue
        request = request.get("request", request)
        cost = request.get("cost") if isinstance(request, dict) else None
        if isinstance(cost, dict) and not adds_up(cost):
            return False
        if isinstance(request, dict) and "rule" in request:
            # An override: two limits must not have the same window.
            limit = request.get("limit")
            if isinstance(limit, list) and len(limit) > 1:
                return False
        brought = request.get("limits") if isinstance(request, dict) else None
        for limit in brought if isinstance(brought, list) else []:
            if isinstance(limit, dict):
                known = limits.setdefault(str(limit.get("key")), limit.get("limit"))
                if known != limit.get("limit"):
                    return False
    return True


@schemathesis.hook
def before_call(context, case, kwargs):
    """A reset names its counters: all, or those of rules that the request is charged on."""
    if case.operation.path == "/v1/reset" and isinstance(case.query, dict):
        case.query.pop("rule", None)
        case.query["all"] = "true"
    # Nobody sends while a receive waits, and a time ahead has a maximum that no pattern expresses.
    if case.operation.path.endswith("/receive") and isinstance(case.body, dict):
        case.body["wait"] = "0s"
    messages = case.body.get("messages", [case.body]) if isinstance(case.body, dict) else []
    for message in messages if isinstance(messages, list) else []:
        if isinstance(message, dict) and "notBefore" in message and "/queues/" in case.operation.path:
            message["notBefore"] = "2025-01-15T08:00:00Z"
