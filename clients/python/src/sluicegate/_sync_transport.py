"""A pool of blocking connections to one service."""

from __future__ import annotations

import os
import select
import socket
import ssl
import threading
import time
from typing import List, Optional, Tuple

from ._wire import Call, Endpoint, Response, ResponseParser, TransportError

#: The service closes a connection that is idle for 75 s, and before its first request after 5 s
#: (``server.header_timeout``). We close it earlier.
IDLE_SECONDS_MAX = 4.0


class SyncTransport:
    """Sends calls over pooled connections. Any number of threads may use it."""

    def __init__(
        self, endpoint: Endpoint, timeout: float, connections_max: int, context: Optional[ssl.SSLContext]
    ) -> None:
        self._endpoint = endpoint
        self._timeout = timeout
        self._slots_max = connections_max
        self._context = context
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._idle: List[Tuple[float, socket.socket]] = []
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(self._slots_max)

    def call(self, call: Call) -> Response:
        """Sends a call and returns its response, within the timeout."""
        if self._pid != os.getpid():
            self._reset()  # A forked process must not share the connections of its parent.
        timeout = max(self._timeout, call.timeout or 0)
        deadline = time.monotonic() + timeout
        if not self._slots.acquire(timeout=self._timeout):
            raise TransportError(f"all {self._slots_max} connections are in use", unsent=True)
        try:
            while True:
                connection = self._take_idle()
                reused = connection is not None
                try:
                    return self._exchange(connection or self._connect(deadline), call, deadline)
                except TransportError as error:
                    # The service closed an idle connection at this moment. On a new connection it is an error.
                    if not reused or not (error.unsent or call.idempotent) or time.monotonic() >= deadline:
                        raise
        finally:
            self._slots.release()

    def close(self) -> None:
        """Closes all idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for _, connection in idle:
            connection.close()

    def _take_idle(self) -> Optional[socket.socket]:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                since, connection = self._idle.pop()
            if time.monotonic() - since < IDLE_SECONDS_MAX and not _is_readable(connection):
                return connection
            connection.close()

    def _connect(self, deadline: float) -> socket.socket:
        endpoint = self._endpoint
        try:
            connection = socket.create_connection((endpoint.host, endpoint.port), timeout=_left(deadline))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if endpoint.tls:
                context = self._context or ssl.create_default_context()
                connection = context.wrap_socket(connection, server_hostname=endpoint.host)
            return connection
        except OSError as error:
            raise TransportError(f"can't connect to {endpoint.host}:{endpoint.port}: {error}", unsent=True) from error

    def _exchange(self, connection: socket.socket, call: Call, deadline: float) -> Response:
        parser = ResponseParser()
        response = None
        try:
            connection.settimeout(_left(deadline))
            connection.sendall(self._endpoint.encode(call))
            while response is None:
                connection.settimeout(_left(deadline))
                data = connection.recv(65536)
                if not data:
                    response = parser.end()
                    if response is None:
                        raise TransportError("the connection was closed before the answer was complete")
                    break
                response = parser.feed(data)
        except socket.timeout as error:
            raise TransportError(f"no answer within {max(self._timeout, call.timeout or 0)} s") from error
        except OSError as error:
            raise TransportError(f"the connection broke: {error}") from error
        finally:
            if response is None or not response.keep_alive:
                connection.close()
        if response.keep_alive:
            with self._lock:
                self._idle.append((time.monotonic(), connection))
        return response


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise socket.timeout("timed out")
    return left


def _is_readable(connection: socket.socket) -> bool:
    """Returns True if an idle connection has something to read, which is its end."""
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        return bool(poll.poll(0))
    return bool(select.select([connection], [], [], 0)[0])
