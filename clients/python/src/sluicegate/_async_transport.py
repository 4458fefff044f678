"""A pool of asyncio connections to one service."""

from __future__ import annotations

import asyncio
import ssl
import time
from typing import Any, Callable, Coroutine, List, Optional, cast

from ._sync_transport import IDLE_SECONDS_MAX
from ._wire import Call, Endpoint, Response, ResponseParser, TransportError


#: A usual answer has less than 2 KB.
_READ_BYTES_MAX = 16 * 1024


class _Connection(asyncio.BufferedProtocol):
    """One connection, with at most one exchange at a time.

    It has a buffer of its own, because asyncio would allocate 256 KB for each read.
    """

    def __init__(self) -> None:
        self._buffer = bytearray(_READ_BYTES_MAX)
        self.transport: Optional[asyncio.Transport] = None
        self.idle_since = 0.0
        self._parser = ResponseParser()
        self._waiter: Optional[asyncio.Future[Response]] = None
        self._response: Optional[Response] = None
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, not a check: the transports of uvloop are no subclass of asyncio's.
        self.transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        data = bytes(memoryview(self._buffer)[:nbytes])
        if self._waiter is None:
            self.abort()  # Bytes that belong to no request.
            return
        try:
            response = self._parser.feed(data)
        except TransportError as error:
            self.fail(error)
            return
        if response is not None:
            self._response = response  # Also if the caller has just been cancelled.
            if not self._waiter.done():
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

    async def exchange(self, request: bytes, timeout: float, *, is_kept: bool = False) -> Response:
        """Sends a request and returns its response. If it is cancelled and kept, `rest` has to be called."""
        assert self.transport is not None
        self._parser = ResponseParser()
        self._response = None
        try:
            waiter = self._wait()
            self.transport.write(request)
            return await self._answer(waiter, timeout)
        except asyncio.CancelledError:
            if is_kept:
                waiter = self._wait()
                if self._response is not None:
                    waiter.set_result(self._response)
                elif self.closed:
                    waiter.set_exception(TransportError("the connection broke"))
            raise
        finally:
            if self._waiter is None and (self._response is None or not self._response.keep_alive):
                self.abort()

    async def rest(self, timeout: float) -> Response:
        """Returns the response to a request whose caller was cancelled."""
        assert self._waiter is not None
        try:
            return await self._answer(self._waiter, timeout)
        finally:
            if self._response is None or not self._response.keep_alive:
                self.abort()

    def _wait(self) -> asyncio.Future[Response]:
        self._waiter = asyncio.get_running_loop().create_future()
        return self._waiter

    async def _answer(self, waiter: asyncio.Future[Response], timeout: float) -> Response:
        timer = asyncio.get_running_loop().call_later(timeout, self._time_out, timeout)
        try:
            return await waiter
        finally:
            timer.cancel()
            self._waiter = None


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
        #: Gets the operation and the answer of each call with `unheard` whose caller was cancelled.
        self.on_unheard: Optional[Callable[[str, Coroutine[Any, Any, Response]], object]] = None

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
                    response = await connection.exchange(request, left, is_kept=self._is_kept(call))
                except asyncio.CancelledError:
                    # The service may have admitted the caller, which must not be lost.
                    if connection is not None and call.unheard is not None and self.on_unheard is not None:
                        self.on_unheard(call.unheard, self._rest(pool, connection, deadline))
                    raise
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

    def _is_kept(self, call: Call) -> bool:
        return call.unheard is not None and self.on_unheard is not None

    async def _rest(self, pool: _Pool, connection: _Connection, deadline: float) -> Response:
        response = await connection.rest(max(0.001, deadline - time.monotonic()))
        if not connection.closed:
            connection.idle_since = time.monotonic()
            pool.idle.append(connection)
        return response

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
