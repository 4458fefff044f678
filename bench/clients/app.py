"""One FastAPI application with the rate limit that LIMITER names: `none`, `slowapi` or `sluicegate`.

The limit is LIMIT per user (header field `x-user-id`). Uvicorn serves `app:app`.
"""

from __future__ import annotations

import os

from fastapi import FastAPI
from starlette.requests import Request

LIMITER, LIMIT = os.environ["LIMITER"], os.environ["LIMIT"]

app = FastAPI()


@app.get("/")
async def hello() -> dict[str, str]:
    return {"hello": "world"}


if LIMITER == "slowapi":
    from slowapi import Limiter
    from slowapi.middleware import SlowAPIASGIMiddleware

    def user(request: Request) -> str:
        return request.headers["x-user-id"]

    app.state.limiter = Limiter(
        key_func=user,
        default_limits=[LIMIT],
        storage_uri=os.environ["REDIS_URL"],
        strategy=os.environ["STRATEGY"],
        headers_enabled=os.environ["HEADERS"] == "on",
    )
    app.add_middleware(SlowAPIASGIMiddleware)

if LIMITER == "sluicegate":
    from sluicegate import AsyncLimiter
    from sluicegate.asgi import RateLimitMiddleware

    # The limit is in the configuration of the service.
    limiter = AsyncLimiter(timeout=30)
    app.add_middleware(RateLimitMiddleware, limiter, lambda request: {"userId": request.header("x-user-id")})
