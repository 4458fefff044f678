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
from ._network import network_of
from ._types import ClientDimensions, Cost, CostLike, Decision, Hold, Limits, hold_of

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
        """Address of the peer. Behind a proxy, it is the proxy's unless the server is configured to trust it.

        As a key, use `client_network`: a client with IPv6 usually has a whole network of addresses.
        """
        client = self.scope.get("client")
        return client[0] if client else None

    @property
    def client_network(self) -> Optional[str]:
        """Address of the peer as a key of limits: its IPv4 address, or the first 56 bits of its IPv6 address."""
        host = self.client_host
        return network_of(host) if host else None

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

    @property
    def is_open(self) -> bool:
        """True if an admission has not ended."""
        return any(not lease.has_ended for lease in self._leases)

    async def end(self) -> None:
        """Settles or releases all open admissions."""
        await asyncio.gather(*(lease.finish(self._cost) for lease in self._leases))


DimensionsOf = Callable[[Connection], Union[Optional[ClientDimensions], Awaitable[Optional[ClientDimensions]]]]


class RateLimitMiddleware:
    """Limits all requests of an ASGI application.

    ``dimensions`` returns the dimensions of a request, or None if it is not limited; a value that the client did not
    send may be None. Without it, the middleware limits nothing itself: it adds the header fields of dependencies and
    decorators, and answers the requests that they deny.

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
            # The outer middleware adds the header fields and ends the admissions.
            await self._answer_denials(scope, receive, send, limits)
            return
        token = current_decisions.set(limits)
        try:
            await self._answer_denials(scope, receive, self._finishing(send, limits), limits)
        finally:
            current_decisions.reset(token)
            await self._end(limits)

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
        return await self._limiter._admit(dimensions, cost=cost, limits=limits, hold=hold_of(cost, self._hold))

    def _finishing(self, send: Send, limits: RequestLimits) -> Send:
        """Returns a ``send`` that adds the header fields, and ends the admissions after the last byte of the answer."""

        async def finishing(message: Message) -> None:
            if message["type"] in _STARTS:
                headers = list(message.get("headers", ()))
                present = {bytes(name).lower() for name, _ in headers}
                for name, value in limits.headers():
                    if name.encode() not in present:
                        headers.append((name.encode(), value.encode("latin-1")))
                message = {**message, "headers": headers}
            await send(message)
            # Before the background tasks of the answer, which the client does not wait for.
            if _is_last(message):
                await self._end(limits)

        return finishing

    async def _answer_denials(self, scope: Scope, receive: Receive, send: Send, limits: RequestLimits) -> None:
        """Runs the application, and answers a request that a dependency or a decorator denies."""
        started, connected = False, False

        async def noting_receive() -> Message:
            nonlocal connected
            message = await receive()
            connected = connected or message["type"] == "websocket.connect"
            return message

        async def noting_send(message: Message) -> None:
            nonlocal started
            started = started or message["type"] in _STARTS
            if self._settle_cost is not None and message["type"] == "http.response.start":
                fields = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in message.get("headers", ())}
                cost = self._settle_cost(message["status"], fields)
                if cost is not None:
                    limits.settle_with(cost)
            await send(message)

        is_websocket = scope["type"] == "websocket"
        try:
            await self.app(scope, noting_receive if is_websocket else receive, noting_send)
        except Denied as denied:
            if not started:
                await refuse(scope, receive, send, denied.decision, limits.headers(), connected=connected)
            elif is_websocket:
                await send(_close_message(denied.decision))
            else:
                raise

    async def _end(self, limits: RequestLimits) -> None:
        if limits.is_open:
            await asyncio.shield(self._limiter.in_background(limits.end()))


_STARTS = ("http.response.start", "websocket.accept", "websocket.http.response.start")


def _is_last(message: Message) -> bool:
    """Returns True for the message that ends an answer."""
    if message["type"] == "http.response.body":
        return not message.get("more_body", False)
    return bool(message["type"] == "http.response.pathsend")


def _close_message(decision: Decision) -> Message:
    # 1013: try again later. If the connection is not accepted yet, the server answers the handshake with 403.
    return {"type": "websocket.close", "code": 1013, "reason": (decision.detail or "")[:120]}


async def refuse(
    scope: Scope,
    receive: Receive,
    send: Send,
    decision: Decision,
    headers: Optional[List[Tuple[str, str]]] = None,
    *,
    connected: bool = False,
) -> None:
    """Answers a denied request: 429 (or 400, 403, 503) with the reason, or the end of a WebSocket handshake.

    ``connected`` is true if the application has already received the beginning of the handshake.
    """
    fields = headers or list(decision.headers)
    head = [(b"content-type", b"application/json"), (b"content-length", str(len(decision.body)).encode())]
    head += [(name.encode(), value.encode("latin-1")) for name, value in fields]
    prefix = "http.response"
    if scope["type"] == "websocket":
        if not connected:
            await receive()  # websocket.connect
        if "websocket.http.response" not in (scope.get("extensions") or {}):
            await send(_close_message(decision))
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
