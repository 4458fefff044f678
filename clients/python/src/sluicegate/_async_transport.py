"""A pool of asyncio connections to one service."""

from __future__ import annotations

import asyncio
import ssl
import time
from typing import List, Optional, cast

from ._sync_transport import IDLE_SECONDS_MAX
from ._wire import Call, Endpoint, Response, ResponseParser, TransportError


class _Connection(asyncio.Protocol):
    """One connection, with at most one exchange at a time."""

    def __init__(self) -> None:
        self.transport: Optional[asyncio.Transport] = None
        self.idle_since = 0.0
        self._parser = ResponseParser()
        self._waiter: Optional[asyncio.Future[Response]] = None
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, not a check: the transports of uvloop are no subclass of asyncio's.
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._waiter is None:
            self.abort()  # Bytes that belong to no request.
            return
        try:
            response = self._parser.feed(data)
        except TransportError as error:
            self.fail(error)
            return
        if response is not None and not self._waiter.done():
            self._waiter.set_result(response)

    def connection_lost(self, exc: Optional[Exception]) -> None:
        self.closed = True
        if self._waiter is None or self._waiter.done():
            return
        response = self._parser.end()
        if response is not None:
            self._waiter.set_result(response)
        else:
            reason = f"the connection broke: {exc}" if exc else "the connection was closed before the answer was complete"
            self._waiter.set_exception(TransportError(reason))

    def fail(self, error: TransportError) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)
        self.abort()

    def _time_out(self, seconds: float) -> None:
        self.fail(TransportError(f"no answer within {seconds:.3f} s"))

    def abort(self) -> None:
        self.closed = True
        if self.transport is not None:
            self.transport.abort()

    async def exchange(self, request: bytes, timeout: float) -> Response:
        loop = asyncio.get_running_loop()
        assert self.transport is not None
        self._parser = ResponseParser()
        self._waiter = loop.create_future()
        timer = loop.call_later(timeout, self._time_out, timeout)
        response = None
        try:
            self.transport.write(request)
            response = await self._waiter
            return response
        finally:
            timer.cancel()
            self._waiter = None
            if response is None or not response.keep_alive:
                self.abort()


class _Pool:
    """The connections of one event loop."""

    def __init__(self, connections_max: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.idle: List[_Connection] = []
        self.slots = asyncio.Semaphore(connections_max)


class AsyncTransport:
    """Sends calls over pooled connections. Each event loop has its own connections."""

    def __init__(
        self, endpoint: Endpoint, timeout: float, connections_max: int, context: Optional[ssl.SSLContext]
    ) -> None:
        self._endpoint = endpoint
        self._timeout = timeout
        self._connections_max = connections_max
        self._context = context
        self._pool: Optional[_Pool] = None

    async def call(self, call: Call) -> Response:
        """Sends a call and returns its response, within the timeout."""
        pool = self._pool
        if pool is None or pool.loop is not asyncio.get_running_loop():
            # The event loop of an earlier `asyncio.run` is closed, and its connections with it.
            pool = self._pool = _Pool(self._connections_max)
        timeout = max(self._timeout, call.timeout or 0)
        deadline = time.monotonic() + timeout
        if pool.slots.locked():
            try:
                await asyncio.wait_for(pool.slots.acquire(), self._timeout)
            except asyncio.TimeoutError:
                raise TransportError(f"all {self._connections_max} connections are in use", unsent=True) from None
        else:
            await pool.slots.acquire()
        try:
            request = self._endpoint.encode(call)
            while True:
                connection = _take_idle(pool)
                reused = connection is not None
                try:
                    if connection is None:
                        connection = await self._connect(deadline)
                    left = deadline - time.monotonic()
                    if left <= 0:
                        raise TransportError(f"no answer within {timeout} s", unsent=True)
                    response = await connection.exchange(request, left)
                except TransportError as error:
                    # The service closed an idle connection at this moment. On a new connection it is an error.
                    if not reused or not (error.unsent or call.idempotent) or time.monotonic() >= deadline:
                        raise
                    continue
                if not connection.closed:
                    connection.idle_since = time.monotonic()
                    pool.idle.append(connection)
                return response
        finally:
            pool.slots.release()

    async def close(self) -> None:
        """Closes all idle connections."""
        pool, self._pool = self._pool, None
        if pool is not None and pool.loop is asyncio.get_running_loop():
            for connection in pool.idle:
                connection.abort()

    async def _connect(self, deadline: float) -> _Connection:
        endpoint = self._endpoint
        context = (self._context or ssl.create_default_context()) if endpoint.tls else None
        opening = asyncio.get_running_loop().create_connection(_Connection, endpoint.host, endpoint.port, ssl=context)
        try:
            _, connection = await asyncio.wait_for(opening, max(0.001, deadline - time.monotonic()))
            return connection
        except (OSError, asyncio.TimeoutError) as error:
            reason = "no answer in time" if isinstance(error, asyncio.TimeoutError) else str(error)
            raise TransportError(f"can't connect to {endpoint.host}:{endpoint.port}: {reason}", unsent=True) from error


def _take_idle(pool: _Pool) -> Optional[_Connection]:
    oldest = time.monotonic() - IDLE_SECONDS_MAX
    while pool.idle:
        connection = pool.idle.pop()
        if not connection.closed and connection.idle_since > oldest:
            return connection
        connection.abort()
    return None
