"""FastAPI: limits as dependencies.

`rate_limit` returns a dependency that limits an endpoint, a router or the application. `install` adds the middleware
that puts the header fields on every answer, also if a later dependency raises.
"""

from __future__ import annotations

import asyncio
from typing import Any, AsyncIterator, Callable, Optional, Sequence, Union

from fastapi import Depends, HTTPException, WebSocketException
from starlette.applications import Starlette
from starlette.requests import HTTPConnection

from ._async_limiter import AsyncLimiter
from ._errors import Denied
from ._types import ClientDimensions, CostLike, Decision, Hold, InlineLimit, hold_of
from .asgi import SCOPE_KEY, RateLimitMiddleware, RequestLimits

__all__ = ["RateLimited", "install", "rate_limit"]


class RateLimited(HTTPException):
    """A denied request. Its answer has the status, the detail and the header fields of the decision."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(decision.status, decision.detail or decision.reason, dict(decision.headers))
        self.decision = decision


def install(app: Starlette, limiter: AsyncLimiter, **options: Any) -> None:
    """Adds `RateLimitMiddleware` to an application, with the options of that class.

    The header fields are also on the answer (500) to an unexpected exception, which Starlette writes outside of all
    middleware that is added with ``add_middleware``.
    """
    app.add_middleware(RateLimitMiddleware, limiter=limiter, **options)
    build = app.build_middleware_stack

    def build_with_headers() -> RateLimitMiddleware:
        return RateLimitMiddleware(build(), limiter)

    app.build_middleware_stack = build_with_headers  # type: ignore[method-assign]


def _nothing() -> None:
    return None


def rate_limit(
    limiter: AsyncLimiter,
    dimensions: Callable[..., Any],
    *,
    cost: Union[CostLike, Callable[..., Any], None] = None,
    limits: Union[Sequence[InlineLimit], Callable[..., Any]] = (),
    hold: Optional[Hold] = None,
    skip_when: Optional[Callable[..., Any]] = None,
) -> Callable[..., AsyncIterator[Decision]]:
    """Returns a dependency that limits requests and WebSocket connections. Use it with ``Depends``.

    ``dimensions`` is a dependency itself, so it can use a JWT, a database or any other dependency. It returns the
    dimensions, or None if the request is not limited. ``cost``, ``limits`` and ``skip_when`` may be dependencies, too.
    The result is the `Decision`.
    """
    cost_of: Callable[..., Any] = cost if callable(cost) else lambda: cost
    limits_of: Callable[..., Any] = limits if callable(limits) else lambda: limits

    async def limit(
        connection: HTTPConnection,
        skipped: Any = Depends(skip_when or _nothing),
        known_dimensions: Any = Depends(dimensions),
        known_cost: Any = Depends(cost_of),
        known_limits: Any = Depends(limits_of),
    ) -> AsyncIterator[Decision]:
        if skipped or known_dimensions is None:
            yield Decision(allowed=True, status=200)
            return
        checked: ClientDimensions = known_dimensions
        decision = await limiter._admit(checked, cost=known_cost, limits=known_limits or (), hold=hold_of(known_cost, hold))
        owner = connection.scope.get(SCOPE_KEY)
        request = owner if isinstance(owner, RequestLimits) else RequestLimits()
        if not decision.allowed:
            request.decisions.append(decision)
            if connection.scope["type"] == "websocket":
                if request is owner:
                    raise Denied(decision)  # The middleware answers the handshake with 429.
                # 1013: try again later. Without the middleware, the server answers the handshake with 403.
                raise WebSocketException(1013, (decision.detail or "")[:120])
            raise RateLimited(decision)
        request.admit(limiter, decision)
        if request is owner:
            # The middleware ends the admission when the answer has been sent completely.
            yield decision
            return
        try:
            yield decision
        finally:
            await asyncio.shield(limiter.in_background(request.end()))

    return limit
