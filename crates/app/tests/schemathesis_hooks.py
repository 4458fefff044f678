"""What the OpenAPI document can't say about requests that are accepted."""

import schemathesis


@schemathesis.hook
def filter_body(context, body):
    """Limits that count under one key are one counter: they have to be the same limit."""
    requests = body if isinstance(body, list) else [body]
    limits = {}
    for request in requests:
        if not isinstance(request, dict):
            continue
        request = request.get("request", request)
        brought = request.get("limits") if isinstance(request, dict) else None
        for limit in brought if isinstance(brought, list) else []:
            if isinstance(limit, dict):
                known = limits.setdefault(str(limit.get("key")), limit.get("limit"))
                if known != limit.get("limit"):
                    return False
    return True
