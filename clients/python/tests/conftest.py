"""Private services for the tests: one on memory, one on Redis, and helpers that run real web servers."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import shutil
import socket
import ssl
import subprocess
import threading
import time
from contextlib import contextmanager
from typing import Any, Callable, Iterator, Optional

import httpx
import pytest
import uvicorn

from sluicegate import AsyncLimiter, Limiter
from sluicegate.testing import Service

LIMITS = """
dimensions:
  userId: optional
  orgId: optional
  slotId: optional
  provider: optional
  briefId: optional
  slowId: optional
limits:
  - name: requests
    effective: true
    rules:
      - name: USER
        per: [userId]
        limit: 10/min
  - name: organisation
    rules:
      - name: ORG
        per: [orgId]
        limit: 3/min
  - name: budget
    rules:
      - name: USER_BUDGET
        per: [userId]
        limit: 5.00 USD/day
  - name: slots
    rules:
      - name: SLOTS
        per: [slotId]
        limit: 2 concurrent
        lease: 1min
  - name: brief slots
    rules:
      - name: BRIEF
        per: [briefId]
        limit: 1 concurrent
        lease: 1s
  - name: vendor
    rules:
      - name: VENDOR
        per: [provider]
        limit: 2/s
  - name: slow vendor
    rules:
      - name: SLOW
        per: [slowId]
        limit: 1/10min
prices:
  default:
    input: 0.0000002 USD/token
    output: 0.0000006 USD/token
"""

_names = itertools.count(1)


@pytest.fixture
def name() -> str:
    """Returns a name that no other test uses."""
    return f"name-{next(_names)}"


@pytest.fixture(scope="session")
def memory_service() -> Iterator[Service]:
    with Service(LIMITS) as service:
        yield service


@pytest.fixture(scope="session")
def redis_service() -> Iterator[Service]:
    with private_redis() as address, Service(on_redis(address, LIMITS)) as service:
        yield service


@pytest.fixture(params=["memory", "redis"])
def service(request: pytest.FixtureRequest) -> Service:
    """Runs a test once for each store."""
    service: Service = request.getfixturevalue(f"{request.param}_service")
    return service


def on_redis(address: str, limits: str) -> str:
    """Returns a configuration whose counters are in Redis. Its timeouts are long: the machine may be busy."""
    return f"store: {{kind: redis, url: 'redis://{address}', timeout: 10s, deadline: 20s}}\n{limits}"


@contextmanager
def private_redis() -> Iterator[str]:
    program = shutil.which("redis-server")
    assert program, "redis-server is not in PATH: run the tests with `cargo xtask test python`"
    port = free_port()
    line = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    with subprocess.Popen(line, stdout=subprocess.DEVNULL) as process:
        try:
            until(lambda: can_connect(port))
            yield f"127.0.0.1:{port}"
        finally:
            process.kill()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def can_connect(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    except OSError:
        return False


def until(condition: Callable[[], Any], seconds: float = 30.0) -> None:
    """Waits for an effect."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the expected effect did not occur"
        time.sleep(0.01)


class Blocking:
    """An `AsyncLimiter` whose methods block, so that a test runs unchanged with both limiters."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._inner = AsyncLimiter(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        inner = getattr(self._inner, name)
        if not inspect.iscoroutinefunction(inner):
            return inner
        return lambda *args, **kwargs: self._loop.run_until_complete(inner(*args, **kwargs))

    def end(self) -> None:
        self._loop.run_until_complete(self._inner.close())
        self._loop.close()


@pytest.fixture(params=["sync", "async"])
def make(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Returns a function that creates a limiter: `Limiter`, then `AsyncLimiter`."""
    made: list[Any] = []

    def create(*args: Any, **kwargs: Any) -> Any:
        kwargs.setdefault("timeout", 30)  # The machine may be busy.
        made.append(Limiter(*args, **kwargs) if request.param == "sync" else Blocking(*args, **kwargs))
        return made[-1]

    yield create
    for limiter in made:
        limiter.close() if isinstance(limiter, Limiter) else limiter.end()


@contextmanager
def running(app: Any, **options: Any) -> Iterator[httpx.Client]:
    """Runs an application in uvicorn, on a real socket."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", **options))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until(lambda: server.started or not thread.is_alive())
        port = server.servers[0].sockets[0].getsockname()[1]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join()


class Proxy:
    """A TCP proxy that delays every chunk of an answer, holds or swallows it. With a context it terminates TLS."""

    def __init__(self, url: str, context: Optional[ssl.SSLContext] = None) -> None:
        self._context = context
        host, _, port = url.rpartition("/")[2].partition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.delay = 0.0
        self.swallow = False
        #: Answers wait while it is not set.
        self.passing = threading.Event()
        self.passing.set()
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                if self._context is not None:
                    near = self._context.wrap_socket(near, server_side=True)
                far = socket.create_connection(self._target)
            except OSError:
                near.close()
                continue
            self.connections += 1
            threading.Thread(target=self._copy, args=(near, far, False), daemon=True).start()
            threading.Thread(target=self._copy, args=(far, near, True), daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        try:
            while data := source.recv(65536):
                if answers:
                    time.sleep(self.delay)
                    self.passing.wait()
                    if self.swallow:
                        continue
                target.sendall(data)
        except OSError:
            pass
        finally:
            for end in (source, target):
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
                end.close()

    def close(self) -> None:
        self.passing.set()
        self._listener.close()


@pytest.fixture
def proxy(service: Service) -> Iterator[Proxy]:
    """Returns a proxy in front of a service, once for each store."""
    proxy = Proxy(service.url)
    yield proxy
    proxy.close()
