"""ASGI middleware for Starlette, FastAPI, Litestar, Quart and every other ASGI application.

It limits HTTP requests and WebSocket connections, answers denied ones, adds the rate limit header fields to every
answer, and ends each admission when the answer has been sent completely.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import Any, Awaitable, Callable, Dict, List, Mapping, MutableMapping, Optional, Tuple, Union

from ._async_limiter import AsyncLease, AsyncLimiter
from ._context import RequestDecisions, current_decisions
from ._errors import Denied
from ._types import Cost, CostLike, Decision, Dimensions, Hold, Limits, hold_of

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

#: Key of the `RequestLimits` in the ASGI scope.
SCOPE_KEY = "sluicegate"


class Connection:
    """An HTTP request or a WebSocket connection, as the functions of the middleware see it."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope

    @property
    def path(self) -> str:
        """Path of the request, without the query."""
        return str(self.scope["path"])

    @property
    def method(self) -> str:
        """Method of the request; ``GET`` for a WebSocket."""
        return str(self.scope.get("method", "GET"))

    @property
    def client_host(self) -> Optional[str]:
        """Address of the peer. Behind a proxy, it is the proxy's unless the server is configured to trust it."""
        client = self.scope.get("client")
        return client[0] if client else None

    def header(self, name: str) -> Optional[str]:
        """Returns the first value of a header field."""
        wanted = name.lower().encode("latin-1")
        for key, value in self.scope["headers"]:
            if key == wanted:
                return str(value.decode("latin-1"))
        return None


class RequestLimits(RequestDecisions):
    """The admissions of one request. An endpoint finds it with `request_limits`."""

    def __init__(self) -> None:
        super().__init__()
        self._leases: List[AsyncLease] = []
        self._cost: Optional[CostLike] = None

    def admit(self, limiter: AsyncLimiter, decision: Decision) -> None:
        """Adds an admission. Its lease is renewed until the answer ends."""
        self.decisions.append(decision)
        if decision.handle is not None:
            self._leases.append(limiter.keep(decision))

    def settle_with(self, cost: CostLike) -> None:
        """Settles the admissions with this cost when the answer has been sent."""
        self._cost = cost

    async def settle(self, cost: CostLike) -> Mapping[str, Any]:
        """Settles the admissions now. Returns the metadata of the last one."""
        metadata: Mapping[str, Any] = {}
        for lease in self._leases:
            metadata = (await lease.settle(cost)).metadata or metadata
        return metadata

    async def end(self) -> None:
        """Settles or releases all open admissions."""
        await asyncio.gather(*(lease.finish(self._cost) for lease in self._leases))


DimensionsOf = Callable[[Connection], Union[Optional[Dimensions], Awaitable[Optional[Dimensions]]]]


class RateLimitMiddleware:
    """Limits all requests of an ASGI application.

    ``dimensions`` returns the dimensions of a request, or None if it is not limited. Without it, the middleware limits
    nothing itself: it adds the header fields of dependencies and decorators, and answers the requests that they deny.

    ``cost`` and ``limits`` may be functions of the `Connection`. Requests for which ``skip_when`` is true are not
    limited. ``settle_cost`` returns the actual cost from the status and the header fields of the answer.
    """

    def __init__(
        self,
        app: Application,
        limiter: AsyncLimiter,
        dimensions: Optional[DimensionsOf] = None,
        *,
        cost: Union[CostLike, Callable[[Connection], CostLike], None] = None,
        limits: Union[Limits, Callable[[Connection], Limits]] = (),
        hold: Optional[Hold] = None,
        skip_when: Optional[Callable[[Connection], bool]] = None,
        settle_cost: Optional[Callable[[int, Dict[str, str]], Optional[Cost]]] = None,
    ) -> None:
        if dimensions is None and (cost is not None or limits or hold is not None or skip_when or settle_cost):
            raise TypeError("dimensions: is required with cost, limits, hold, skip_when and settle_cost")
        self.app = app
        self._limiter = limiter
        self._dimensions = dimensions
        self._cost = cost
        self._limits = limits
        self._hold = hold
        self._skip_when = skip_when
        self._settle_cost = settle_cost

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        outer = scope.get(SCOPE_KEY)
        limits = outer if isinstance(outer, RequestLimits) else RequestLimits()
        scope[SCOPE_KEY] = limits
        decision = await self._decide(Connection(scope))
        if decision is not None:
            if not decision.allowed:
                limits.decisions.append(decision)
                await refuse(scope, receive, send, decision, limits.headers())
                return
            limits.admit(self._limiter, decision)
        if limits is outer:
            await self.app(scope, receive, send)
        else:
            await self._answer(scope, receive, send, limits)

    async def _decide(self, connection: Connection) -> Optional[Decision]:
        if self._dimensions is None or (self._skip_when is not None and self._skip_when(connection)):
            return None
        dimensions = self._dimensions(connection)
        if inspect.isawaitable(dimensions):
            dimensions = await dimensions
        if dimensions is None:
            return None
        cost = self._cost(connection) if callable(self._cost) else self._cost
        limits = self._limits(connection) if callable(self._limits) else self._limits
        return await self._limiter.acquire(dimensions, cost=cost, limits=limits, hold=hold_of(cost, self._hold))

    async def _answer(self, scope: Scope, receive: Receive, send: Send, limits: RequestLimits) -> None:
        started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] in ("http.response.start", "websocket.accept", "websocket.http.response.start"):
                started = True
                headers = list(message.get("headers", ()))
                present = {bytes(name).lower() for name, _ in headers}
                for name, value in limits.headers():
                    if name.encode() not in present:
                        headers.append((name.encode(), value.encode("latin-1")))
                message = {**message, "headers": headers}
                if self._settle_cost is not None and message["type"] == "http.response.start":
                    fields = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in headers}
                    cost = self._settle_cost(message["status"], fields)
                    if cost is not None:
                        limits.settle_with(cost)
            await send(message)

        token = current_decisions.set(limits)
        try:
            await self.app(scope, receive, send_with_headers)
        except Denied as denied:
            if started:
                raise
            await refuse(scope, receive, send, denied.decision, limits.headers())
        finally:
            current_decisions.reset(token)
            if limits._leases:
                await asyncio.shield(self._limiter.in_background(limits.end()))


async def refuse(
    scope: Scope, receive: Receive, send: Send, decision: Decision, headers: Optional[List[Tuple[str, str]]] = None
) -> None:
    """Answers a denied request: 429 (or 403, 503) with the reason, or the end of a WebSocket handshake."""
    fields = headers or list(decision.headers)
    head = [(b"content-type", b"application/json"), (b"content-length", str(len(decision.body)).encode())]
    head += [(name.encode(), value.encode("latin-1")) for name, value in fields]
    prefix = "http.response"
    if scope["type"] == "websocket":
        await receive()  # websocket.connect
        if "websocket.http.response" not in scope.get("extensions", {}):
            # 1013: try again later. The server answers the handshake with 403.
            await send({"type": "websocket.close", "code": 1013, "reason": (decision.detail or "")[:120]})
            return
        prefix = "websocket.http.response"
    await send({"type": f"{prefix}.start", "status": decision.status, "headers": head})
    await send({"type": f"{prefix}.body", "body": decision.body})


def request_limits(request: Any) -> RequestLimits:
    """Returns the admissions of a request: of a Starlette or FastAPI ``Request`` or ``WebSocket``, or an ASGI scope."""
    scope = request if isinstance(request, Mapping) and "type" in request else request.scope
    limits = scope.get(SCOPE_KEY)
    if not isinstance(limits, RequestLimits):
        raise RuntimeError("RateLimitMiddleware is not installed: add it to the application")
    return limits
