"""`AsyncQueue`: the asyncio client of a queue."""

from __future__ import annotations

import asyncio
import logging
import ssl
from datetime import datetime
from typing import Any, Awaitable, Callable, Iterable, List, Mapping, Optional, Sequence, Set, Union

from ._async_transport import AsyncTransport
from ._errors import LeaseLost, SluicegateError, Unavailable
from ._flows import run_async
from ._queue import _PAUSE_SECONDS, _PAUSE_SECONDS_MAX, _SETTLE_ATTEMPTS
from ._queue_flows import Attempts, Body, Depth, Message, QueueFlows, Seconds, error_json, seconds, span
from ._wire import Endpoint

log = logging.getLogger("sluicegate")


class AsyncQueue:
    """A queue of a Sluicegate service, on any broker. The options are those of `Queue`."""

    def __init__(
        self,
        name: str,
        url: Optional[str] = None,
        *,
        token: Optional[str] = None,
        timeout: float = 10.0,
        connections_max: int = 64,
        ssl_context: Optional[ssl.SSLContext] = None,
    ) -> None:
        self._flows = QueueFlows(name)
        self._transport = AsyncTransport(Endpoint(url, token), timeout, connections_max, ssl_context)

    @property
    def name(self) -> str:
        """Name of the queue."""
        return self._flows.name

    async def send(
        self,
        body: Body,
        *,
        job: Optional[str] = None,
        type: Optional[str] = None,
        delay: Optional[Seconds] = None,
        priority: int = 0,
        headers: Optional[Mapping[str, str]] = None,
        max_attempts: Optional[int] = None,
    ) -> str:
        """Sends a message and returns its id: see `Queue.send`."""
        flow = self._flows.send(body, job, type, delay, priority, headers, max_attempts)
        return await run_async(flow, self._transport.call)

    async def send_batch(
        self, bodies: Iterable[Body], *, type: Optional[str] = None, delay: Optional[Seconds] = None
    ) -> List[str]:
        """Sends messages and returns their ids."""
        return await run_async(self._flows.send_batch(bodies, type, delay), self._transport.call)

    async def receive(self, max: int = 1, *, wait: Seconds = 20, lease: Optional[Seconds] = None) -> List[Message]:
        """Waits for messages and leases up to ``max`` of them: see `Queue.receive`."""
        return await run_async(self._flows.receive(max, wait, lease), self._transport.call)

    async def delete(self, message: Message) -> None:
        """Acknowledges a message: the work is done. Raises `LeaseLost` if another consumer has it."""
        await run_async(self._flows.settle("ack", message), self._transport.call)

    async def delete_batch(self, messages: Sequence[Message]) -> None:
        """Acknowledges messages. If some leases are lost, the others are acknowledged before it raises."""
        await run_async(self._flows.delete_batch(messages), self._transport.call)

    async def send_to_dlq(self, message: Message, error: Union[BaseException, str]) -> None:
        """Moves a message to the dead-letter queue, with the reason."""
        await run_async(self._flows.settle("dead-letter", message, error=error_json(error)), self._transport.call)

    async def retry(self, message: Message, delay: Seconds = 0) -> None:
        """Returns a message for another attempt after a failure."""
        await run_async(self._flows.settle("retry", message, delay=span(delay)), self._transport.call)

    async def defer(self, message: Message, delay: Seconds = 0) -> None:
        """Returns a message for a later time. That is no failed attempt."""
        await run_async(self._flows.settle("defer", message, delay=span(delay)), self._transport.call)

    async def requeue(self, message: Message) -> None:
        """Makes a message available to other consumers at once."""
        await run_async(self._flows.settle("requeue", message), self._transport.call)

    async def extend(self, message: Message, lease: Optional[Seconds] = None) -> datetime:
        """Extends the lease of a message to this length from now. Returns its end."""
        return await run_async(self._flows.extend(message, lease), self._transport.call)

    async def depth(self) -> Depth:
        """Returns the number of messages."""
        return await run_async(self._flows.depth(), self._transport.call)

    async def close(self) -> None:
        """Closes all idle connections."""
        await self._transport.close()

    async def __aenter__(self) -> AsyncQueue:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def work(
        self,
        handler: Callable[[Message], Awaitable[Any]],
        *,
        concurrency: int = 1,
        lease: Seconds = 60,
        attempts: int = 3,
        backoff: float = 1.0,
        backoff_max: float = 60.0,
        limit: Optional[int] = None,
        stop: Optional[asyncio.Event] = None,
    ) -> int:
        """Processes messages with ``handler`` until ``stop`` is set, or ``limit`` messages are done: see `Queue.work`.

        If the task of the worker is cancelled, its running handlers are cancelled and their messages go back.
        """
        if concurrency < 1:
            raise ValueError("concurrency: must be at least 1")
        rules = Attempts(attempts, backoff, backoff_max)
        stop = stop or asyncio.Event()
        running: Set[asyncio.Task[None]] = set()
        started, pause = 0, _PAUSE_SECONDS
        try:
            while not stop.is_set() and (limit is None or started < limit):
                if len(running) >= concurrency:
                    _, running = await asyncio.wait(running, timeout=0.5, return_when=asyncio.FIRST_COMPLETED)
                    continue
                room = concurrency - len(running)
                room = room if limit is None else min(room, limit - started)
                try:
                    # Short waits, so that it notices `stop`.
                    received = await self.receive(min(room, 100), wait=1 if running else 2, lease=lease)
                    pause = _PAUSE_SECONDS
                except Unavailable as error:
                    log.warning("worker of %s waits: %s", self.name, error)
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, _PAUSE_SECONDS_MAX)
                    continue
                for message in received:
                    running.add(asyncio.ensure_future(self._process(handler, message, rules, seconds(lease))))
                started += len(received)
                running = {task for task in running if not task.done()}
            if running:
                await asyncio.wait(running)
        finally:
            for task in running:
                task.cancel()
            if running:
                await asyncio.wait(running)
        return started

    async def _process(
        self, handler: Callable[[Message], Awaitable[Any]], message: Message, rules: Attempts, lease: float
    ) -> None:
        keeping = asyncio.ensure_future(self._keep(message, lease))
        failure: Optional[Exception] = None
        try:
            try:
                await handler(message)
            except asyncio.CancelledError:
                await asyncio.shield(self._requeue(message))
                raise
            except Exception as error:
                failure = error
            # The lease is extended until the message is settled, which may take several attempts.
            await self._settle(message, failure, rules)
        finally:
            keeping.cancel()

    async def _requeue(self, message: Message) -> None:
        try:
            await self.requeue(message)
        except SluicegateError as error:
            log.warning("job %s of %s returns when its lease ends: %s", message.job, self.name, error)

    async def _settle(self, message: Message, failure: Optional[Exception], rules: Attempts) -> None:
        """Settles a processed message; retries while the service does not answer."""
        pause = _PAUSE_SECONDS
        for attempt in range(_SETTLE_ATTEMPTS):
            try:
                await run_async(self._flows.processed(message, failure, rules), self._transport.call)
                return
            except LeaseLost as error:
                log.warning("job %s of %s is delivered again: %s", message.job, self.name, error)
                return
            except Unavailable as error:
                if attempt + 1 == _SETTLE_ATTEMPTS:
                    log.error("job %s of %s is delivered again: %s", message.job, self.name, error)
                    return
                await asyncio.sleep(pause)
                pause = min(pause * 2, _PAUSE_SECONDS_MAX)
            except Exception:
                log.exception("job %s of %s was not settled, and is delivered again", message.job, self.name)
                return

    async def _keep(self, message: Message, lease: float) -> None:
        """Extends the lease of a message until it is cancelled."""
        # A third of the lease, so that two more extensions are possible after one fails.
        while True:
            await asyncio.sleep(lease / 3)
            try:
                await self.extend(message, lease)
            except LeaseLost as error:
                log.warning("job %s of %s is delivered again: %s", message.job, self.name, error)
                return
            except SluicegateError as error:
                log.warning("lease of job %s not extended: %s", message.job, error)
