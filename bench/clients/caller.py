"""Calls the service by one client until it is told to stop: `caller.py (http|streams|sync|async) URL`.

Each line of input is `seconds in_flight`. The answer is one line of JSON: the calls, their seconds, the processor time
and the latencies in microseconds.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import sys
import time
from typing import Any, Awaitable, Callable, List
from urllib.parse import urlsplit

from sluicegate import AsyncLimiter, Limiter

USERS = [{"userId": f"user-{number:06}"} for number in range(1000)]
PATH = "/v1/acquire?status=429"


def measured(latencies: List[float], began: float, cpu: float) -> None:
    latencies.sort()
    row = {
        "calls": len(latencies),
        "seconds": time.perf_counter() - began,
        "cpu": time.process_time() - cpu,
        "p50": latencies[len(latencies) // 2] * 1e6,
        "p99": latencies[len(latencies) * 99 // 100] * 1e6,
    }
    print(json.dumps(row), flush=True)


def run_sync(call: Callable[[Any], bool]) -> None:
    for line in sys.stdin:
        seconds = float(line.split()[0])
        latencies: List[float] = []
        began, cpu = time.perf_counter(), time.process_time()
        before = began
        while before < began + seconds:
            assert call(USERS[len(latencies) % len(USERS)]), "denied"
            now = time.perf_counter()
            latencies.append(now - before)
            before = now
        measured(latencies, began, cpu)


async def run_async(call: Callable[[Any], Awaitable[bool]]) -> None:
    for line in sys.stdin:
        words = line.split()
        seconds, in_flight = float(words[0]), int(words[1])
        latencies: List[float] = []

        async def worker(began: float) -> None:
            before = time.perf_counter()
            while before < began + seconds:
                assert await call(USERS[len(latencies) % len(USERS)]), "denied"
                now = time.perf_counter()
                latencies.append(now - before)
                before = now

        began, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(worker(began) for _ in range(in_flight)))
        measured(latencies, began, cpu)


def http_client(url: str) -> None:
    """The bare call with the standard library."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc)
    headers = {"content-type": "application/json"}

    def call(dimensions: Any) -> bool:
        connection.request("POST", PATH, json.dumps({"dimensions": dimensions}), headers)
        return bool(json.loads(connection.getresponse().read())["allowed"])

    run_sync(call)


async def streams(url: str) -> None:
    """The bare call with asyncio streams: it reads only the length from the header."""
    address = urlsplit(url)
    idle: List[Any] = []
    head = f"POST {PATH} HTTP/1.1\r\nhost: {address.netloc}\r\ncontent-type: application/json\r\ncontent-length: "

    async def call(dimensions: Any) -> bool:
        stream = idle.pop() if idle else await asyncio.open_connection(address.hostname, address.port)
        reader, writer = stream
        body = json.dumps({"dimensions": dimensions})
        writer.write(f"{head}{len(body)}\r\n\r\n{body}".encode())
        fields = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(fields.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
        answer = json.loads(await reader.readexactly(length))
        idle.append(stream)
        return bool(answer["allowed"])

    await run_async(call)


async def async_limiter(url: str) -> None:
    async with AsyncLimiter(url, timeout=30) as limiter:

        async def call(dimensions: Any) -> bool:
            return (await limiter.acquire(dimensions)).allowed

        await run_async(call)


def main() -> None:
    kind, url = sys.argv[1:]
    if kind == "http":
        http_client(url)
    elif kind == "sync":
        limiter = Limiter(url, timeout=30)
        run_sync(lambda dimensions: limiter.acquire(dimensions).allowed)
    else:
        asyncio.run(streams(url) if kind == "streams" else async_limiter(url))


if __name__ == "__main__":
    main()
