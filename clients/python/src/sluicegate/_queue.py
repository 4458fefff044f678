"""`Queue`: the synchronous client of a queue."""

from __future__ import annotations

import logging
import ssl
import threading
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from datetime import datetime
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Union

from ._errors import LeaseLost, SluicegateError, Unavailable
from ._flows import run_sync
from ._queue_flows import Attempts, Body, Depth, Message, QueueFlows, Seconds, error_json, seconds, span
from ._sync_transport import SyncTransport
from ._wire import Endpoint

log = logging.getLogger("sluicegate")

# Pauses of a worker while the service does not answer.
_PAUSE_SECONDS = 0.2
_PAUSE_SECONDS_MAX = 5.0
# Further attempts to settle a message: the work is done, and doing it again costs more.
_SETTLE_ATTEMPTS = 5


class Queue:
    """A queue of a Sluicegate service, on any broker. One object serves all threads of an application.

    ``url`` and ``token`` are those of `Limiter`; the token needs the scope ``queue``. A call takes at most ``timeout``
    seconds, in addition to the time that `receive` waits.
    """

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
        self._transport = SyncTransport(Endpoint(url, token), timeout, connections_max, ssl_context)

    @property
    def name(self) -> str:
        """Name of the queue."""
        return self._flows.name

    def send(
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
        """Sends a message and returns its id. When it returns, the message survives a crash of the broker.

        Bytes and text are sent as they are, everything else as JSON. A second message with the same ``job`` is
        recognised by consumers as the same job. ``max_attempts`` replaces ``attempts`` of the worker.
        """
        flow = self._flows.send(body, job, type, delay, priority, headers, max_attempts)
        return run_sync(flow, self._transport.call)

    def send_batch(self, bodies: Iterable[Body], *, type: Optional[str] = None, delay: Optional[Seconds] = None) -> List[str]:
        """Sends messages and returns their ids."""
        return run_sync(self._flows.send_batch(bodies, type, delay), self._transport.call)

    def receive(self, max: int = 1, *, wait: Seconds = 20, lease: Optional[Seconds] = None) -> List[Message]:
        """Waits up to ``wait`` seconds (at most 20) for messages and leases up to ``max`` of them.

        ``lease`` is the time until another consumer may get them, unless they are settled or extended; the default is
        ``queue.visibility`` of the service.
        """
        return run_sync(self._flows.receive(max, wait, lease), self._transport.call)

    def delete(self, message: Message) -> None:
        """Acknowledges a message: the work is done. Raises `LeaseLost` if another consumer has it."""
        run_sync(self._flows.settle("ack", message), self._transport.call)

    def delete_batch(self, messages: Sequence[Message]) -> None:
        """Acknowledges messages. If some leases are lost, the others are acknowledged before it raises."""
        run_sync(self._flows.delete_batch(messages), self._transport.call)

    def send_to_dlq(self, message: Message, error: Union[BaseException, str]) -> None:
        """Moves a message to the dead-letter queue, with the reason."""
        run_sync(self._flows.settle("dead-letter", message, error=error_json(error)), self._transport.call)

    def retry(self, message: Message, delay: Seconds = 0) -> None:
        """Returns a message for another attempt after a failure."""
        run_sync(self._flows.settle("retry", message, delay=span(delay)), self._transport.call)

    def defer(self, message: Message, delay: Seconds = 0) -> None:
        """Returns a message for a later time. That is no failed attempt."""
        run_sync(self._flows.settle("defer", message, delay=span(delay)), self._transport.call)

    def requeue(self, message: Message) -> None:
        """Makes a message available to other consumers at once."""
        run_sync(self._flows.settle("requeue", message), self._transport.call)

    def extend(self, message: Message, lease: Optional[Seconds] = None) -> datetime:
        """Extends the lease of a message to this length from now. Returns its end."""
        return run_sync(self._flows.extend(message, lease), self._transport.call)

    def depth(self) -> Depth:
        """Returns the number of messages."""
        return run_sync(self._flows.depth(), self._transport.call)

    def close(self) -> None:
        """Closes all idle connections."""
        self._transport.close()

    def __enter__(self) -> Queue:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def work(
        self,
        handler: Callable[[Message], Any],
        *,
        concurrency: int = 1,
        lease: Seconds = 60,
        attempts: int = 3,
        backoff: float = 1.0,
        backoff_max: float = 60.0,
        limit: Optional[int] = None,
        stop: Optional[threading.Event] = None,
    ) -> int:
        """Processes messages with ``handler`` until ``stop`` is set, or ``limit`` messages are done. Returns their number.

        Up to ``concurrency`` messages are processed at once, each in a thread. Their leases are extended while they are
        processed. A message is deleted when ``handler`` returns. If it raises `Defer`, the message is delivered later;
        if it raises `Reject`, it is a dead letter; after any other exception it is retried with a growing pause, and is
        a dead letter after ``attempts`` attempts.
        """
        if concurrency < 1:
            raise ValueError("concurrency: must be at least 1")
        rules = Attempts(attempts, backoff, backoff_max)
        stop = stop or threading.Event()
        leases = _LeaseKeeper(self, seconds(lease))
        running: Dict[Future[None], Message] = {}
        started, pause = 0, _PAUSE_SECONDS
        with ThreadPoolExecutor(concurrency, thread_name_prefix=f"sluicegate-{self.name}") as pool:
            try:
                while not stop.is_set() and (limit is None or started < limit):
                    running = {future: message for future, message in running.items() if not future.done()}
                    if len(running) >= concurrency:
                        wait(running, timeout=0.5, return_when=FIRST_COMPLETED)
                        continue
                    room = concurrency - len(running)
                    room = room if limit is None else min(room, limit - started)
                    try:
                        # Short waits, so that it notices `stop`.
                        received = self.receive(min(room, 100), wait=1 if running else 2, lease=lease)
                        pause = _PAUSE_SECONDS
                    except Unavailable as error:
                        log.warning("worker of %s waits: %s", self.name, error)
                        stop.wait(pause)
                        pause = min(pause * 2, _PAUSE_SECONDS_MAX)
                        continue
                    for message in received:
                        leases.add(message)
                        running[pool.submit(self._process, handler, message, rules, leases)] = message
                    started += len(received)
                wait(running)
            finally:
                # After an exception, messages that no thread has begun go back.
                for future, message in running.items():
                    if future.cancel():
                        leases.remove(message)
                        self._give_back(message)
                wait(running)
                leases.close()
        return started

    def _give_back(self, message: Message) -> None:
        try:
            self.requeue(message)
        except SluicegateError as error:
            log.warning("job %s of %s returns when its lease ends: %s", message.job, self.name, error)

    def _process(self, handler: Callable[[Message], Any], message: Message, rules: Attempts, leases: _LeaseKeeper) -> None:
        failure: Optional[Exception] = None
        try:
            handler(message)
        except Exception as error:
            failure = error
        try:
            self._settle(message, failure, rules)
        finally:
            leases.remove(message)

    def _settle(self, message: Message, failure: Optional[Exception], rules: Attempts) -> None:
        """Settles a processed message; retries while the service does not answer."""
        pause = _PAUSE_SECONDS
        for attempt in range(_SETTLE_ATTEMPTS):
            try:
                run_sync(self._flows.processed(message, failure, rules), self._transport.call)
                return
            except LeaseLost as error:
                log.warning("job %s of %s is delivered again: %s", message.job, self.name, error)
                return
            except Unavailable as error:
                if attempt + 1 == _SETTLE_ATTEMPTS:
                    log.error("job %s of %s is delivered again: %s", message.job, self.name, error)
                    return
                time.sleep(pause)
                pause = min(pause * 2, _PAUSE_SECONDS_MAX)
            except Exception:
                log.exception("job %s of %s was not settled, and is delivered again", message.job, self.name)
                return


class _LeaseKeeper:
    """Extends the leases of messages that are being processed, in one thread."""

    def __init__(self, queue: Queue, lease: float) -> None:
        self._queue = queue
        self._lease = lease
        self._messages: Dict[str, Message] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"sluicegate-{queue.name}-leases", daemon=True)
        self._thread.start()

    def add(self, message: Message) -> None:
        with self._lock:
            self._messages[message.handle] = message

    def remove(self, message: Message) -> None:
        with self._lock:
            self._messages.pop(message.handle, None)

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        # A third of the lease, so that two more extensions are possible after one fails.
        while not self._closed.wait(self._lease / 3):
            with self._lock:
                messages = list(self._messages.values())
            for message in messages:
                try:
                    self._queue.extend(message, self._lease)
                except LeaseLost as error:
                    self.remove(message)
                    log.warning("job %s of %s is delivered again: %s", message.job, self._queue.name, error)
                except SluicegateError as error:
                    log.warning("lease of job %s not extended: %s", message.job, error)
