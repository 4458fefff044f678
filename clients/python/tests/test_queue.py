"""Every operation of both queue clients and their workers, against a real service on the embedded queue."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from typing import Any, Callable, Iterator

import pytest
from conftest import free_port, until

from sluicegate import ApiError, AsyncQueue, Defer, LeaseLost, Message, Queue, Reject, Unavailable
from sluicegate._queue_flows import QueueFlows
from sluicegate.testing import Service

Make = Callable[..., Any]


@pytest.fixture(scope="module")
def queue_service() -> Iterator[Service]:
    with Service("queue: {job_id: id}") as service:
        yield service


class Blocking:
    """An `AsyncQueue` whose methods block, so that a test runs unchanged with both clients."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._inner = AsyncQueue(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        inner = getattr(self._inner, name)
        if not inspect.iscoroutinefunction(inner):
            return inner
        return lambda *args, **kwargs: self._loop.run_until_complete(inner(*args, **kwargs))

    def work(self, handler: Callable[[Message], Any], **options: Any) -> int:
        async def handle(message: Message) -> Any:
            return await asyncio.get_running_loop().run_in_executor(None, handler, message)

        return self._loop.run_until_complete(self._inner.work(handle, **options))


@pytest.fixture(params=[Queue, Blocking], ids=["sync", "async"])
def queue(request: pytest.FixtureRequest, queue_service: Service, name: str) -> Any:
    return request.param(f"{request.param.__name__}-{name}", queue_service.url, timeout=30)


def test_a_message_is_sent_received_as_it_was_extended_and_deleted_once(queue: Any) -> None:
    bodies = [{"id": "j-1", "n": 1}, "text\n", b"\x00\xff\n"]
    for body in bodies:
        queue.send(body, type="t", headers={"x-a": "b"})
    first, second, third = [queue.receive()[0] for _ in bodies]
    assert first.json() == bodies[0]
    assert (first.job, first.type, first.headers["x-a"], first.attempt) == ("j-1", "t", "b", 0)
    assert second.text() == "text\n"
    assert third.body == b"\x00\xff\n"
    assert queue.extend(first, 7200) > first.lease_until
    queue.delete(first)
    queue.delete(first)
    with pytest.raises(LeaseLost) as lost:
        queue.requeue(first)
    assert lost.value.reason == "LEASE_SETTLED"
    queue.delete_batch([second, third])
    depth = queue.depth()
    assert (depth.ready, depth.delayed, depth.in_flight, depth.dead_letters) == (0, 0, 0, 0)
    assert queue.receive(10, wait=0) == []


def test_a_batch_is_sent_a_message_is_delayed_and_failures_are_counted(queue: Any) -> None:
    assert len(set(queue.send_batch({"n": n} for n in range(600)))) == 600
    queue.send("later", delay=3600)
    depth = queue.depth()
    assert (depth.ready, depth.delayed) == (600, 1)
    received: list[Message] = []
    while len(received) < 600:
        received += queue.receive(100)
    queue.delete_batch(received[3:])
    queue.retry(received[0])
    queue.defer(received[1])
    queue.send_to_dlq(received[2], ValueError("no such repository"))
    again: list[Message] = []
    while len(again) < 2:
        again += queue.receive(10)
    assert sorted((message.attempt, message.deferrals) for message in again) == [(0, 1), (1, 0)]
    assert queue.depth().dead_letters == 1


def test_errors_name_what_is_wrong(queue: Any, queue_service: Service) -> None:
    with pytest.raises(ApiError) as missing:
        queue.depth()
    assert (missing.value.status, missing.value.reason) == (404, "NO_QUEUE")
    with pytest.raises(ApiError) as invalid:
        queue.send("x", priority=10)
    assert invalid.value.field == "priority"
    with pytest.raises(ApiError, match="wait: must be from"):
        queue.receive(wait=21)
    with pytest.raises(ValueError, match="must not be negative"):
        queue.receive(wait=-1)
    with pytest.raises(Unavailable):
        Queue("q", f"http://127.0.0.1:{free_port()}").send("x")
    with pytest.raises(ValueError, match="name"):
        Queue("")


def test_a_worker_deletes_retries_defers_rejects_and_keeps_leases(queue: Any) -> None:
    queue.send_batch(["done", "fails", "broken", "later", "slow"])
    queue.send("fails once", max_attempts=1)
    seen: dict[str, int] = {}

    def handle(message: Message) -> None:
        body = message.text()
        seen[body] = seen.get(body, 0) + 1
        if body.startswith("fails"):
            raise RuntimeError("always")
        if body == "broken":
            raise Reject("not valid")
        if body == "later" and seen["later"] == 1:
            raise Defer(0.01)
        if body == "slow":
            time.sleep(2.5)  # Longer than its lease.

    assert queue.work(handle, concurrency=3, lease=1, attempts=3, backoff=0.01, limit=9) == 9
    assert seen == {"done": 1, "fails": 3, "broken": 1, "later": 2, "slow": 1, "fails once": 1}
    depth = queue.depth()
    assert (depth.ready, depth.in_flight, depth.dead_letters) == (0, 0, 3)


def test_a_worker_goes_on_when_the_service_is_killed_and_loses_nothing() -> None:
    with Service("queue: {}") as service:
        queue = Queue("jobs", service.url, timeout=30)
        sent = {f"job-{n}" for n in range(60)}
        queue.send_batch(sorted(sent))
        done: set[str] = set()
        stop = threading.Event()
        worker = threading.Thread(
            target=queue.work, args=(lambda message: done.add(message.text()),), kwargs={"concurrency": 4, "lease": 2, "stop": stop}
        )
        worker.start()
        try:
            for kill in range(3):
                until(lambda: len(done) > kill * 10)  # noqa: B023
                service.restart()
            until(lambda: done == sent)
        finally:
            stop.set()
            worker.join()


def test_a_cancelled_worker_returns_its_messages(queue_service: Service, name: str) -> None:
    async def main() -> None:
        queue = AsyncQueue(name, queue_service.url, timeout=30)
        await queue.send("a")
        began = asyncio.Event()

        async def handle(_: Message) -> None:
            began.set()
            await asyncio.sleep(3600)

        working = asyncio.ensure_future(queue.work(handle))
        await began.wait()
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        (again,) = await queue.receive()
        assert again.text() == "a"
        await queue.delete(again)

    asyncio.run(main())


@pytest.mark.parametrize("kind", [Queue, AsyncQueue], ids=["sync", "async"])
def test_a_worker_keeps_the_lease_until_the_message_is_settled(
    queue_service: Service, name: str, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    """The service answers only the second attempt to settle, which comes after the first lease would have ended."""
    queue = Queue(name, queue_service.url, timeout=30)
    other = Queue(name, queue_service.url, timeout=30)
    queue.send("once")
    received: list[Message] = []
    original = QueueFlows.processed

    def processed(self: Any, *args: Any) -> Any:
        monkeypatch.setattr(QueueFlows, "processed", original)
        raise Unavailable("the test holds the first attempt")
        yield

    # The pause before the second attempt is longer than the lease.
    module = "sluicegate._queue" if kind is Queue else "sluicegate._async_queue"
    monkeypatch.setattr(f"{module}._PAUSE_SECONDS", 3)
    monkeypatch.setattr(QueueFlows, "processed", processed)
    listener = threading.Thread(target=lambda: received.extend(other.receive(wait=5)))
    if kind is Queue:
        work = lambda: queue.work(lambda message: listener.start(), lease=1, limit=1)  # noqa: E731
    else:

        async def run() -> None:
            async def handle(message: Message) -> None:
                listener.start()

            await AsyncQueue(name, queue_service.url, timeout=30).work(handle, lease=1, limit=1)

        work = lambda: asyncio.run(run())  # noqa: E731
    work()
    listener.join()
    assert received == []
    assert queue.depth().in_flight == 0
