"""The operations of the queue API, written once for `Queue` and `AsyncQueue`: see `_flows`."""

from __future__ import annotations

import base64
import json
import logging
import random
import traceback
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Dict, Iterable, List, Mapping, NoReturn, Optional, Sequence, Union
from urllib.parse import quote

from ._errors import ApiError, LeaseLost, Unavailable
from ._flows import Flow, decode_answer
from ._types import parse_time
from ._wire import Call, TransportError

log = logging.getLogger("sluicegate")

#: Seconds, or a ``timedelta``.
Seconds = Union[int, float, timedelta]
#: A body: bytes and text are sent as they are, everything else as JSON.
Body = Any

# Messages in one call: the maximum of the service.
_BATCH_MAX = 500
# Reasons of the service for a lease that can't be used any more.
_LOST = ("LEASE_LOST", "LEASE_EXPIRED", "LEASE_UNKNOWN", "OTHER_NODE", "LEASE_SETTLED")
# Seconds that an answer may take after a receive has waited.
_ANSWER_SECONDS = 5.0


@dataclass(frozen=True)
class Message:
    """A message that this client has leased. Until `lease_until`, nobody else gets it."""

    #: The body, byte by byte as its producer sent it.
    body: bytes
    #: Job id, the same in every queue and at every delivery.
    job: str
    #: Id of this copy of the job.
    id: str
    #: Type of the job, such as ``"crawl_repo"``.
    type: Optional[str]
    #: Number of failed attempts: 0 the first time.
    attempt: int
    #: Number of times that it waited for a limit.
    deferrals: int
    #: Number of earlier deliveries that were not settled, as far as the broker knows.
    redeliveries: int
    priority: int
    #: Maximum number of attempts, if the producer set one. It replaces ``attempts`` of a worker.
    max_attempts: Optional[int]
    headers: Mapping[str, str]
    content_type: Optional[str]
    sent_at: Optional[datetime]
    lease_until: datetime
    #: Name of the lease.
    handle: str = field(repr=False)

    def json(self) -> Any:
        """Returns the body as JSON."""
        return json.loads(self.body)

    def text(self) -> str:
        """Returns the body as text."""
        return self.body.decode()


@dataclass(frozen=True)
class Depth:
    """The number of messages in a queue. A value that the broker does not know is None."""

    ready: Optional[int]
    delayed: Optional[int]
    in_flight: Optional[int]
    dead_letters: Optional[int]
    dead_letter_queue: str


class Defer(Exception):
    """Raised by a worker function: deliver the message later. That is no failed attempt."""

    def __init__(self, delay: Seconds = 0) -> None:
        super().__init__(f"deferred for {delay}")
        self.delay = delay


class Reject(Exception):
    """Raised by a worker function: the message can never be processed. It becomes a dead letter at once."""


@dataclass(frozen=True)
class Attempts:
    """The rules for a message whose processing failed."""

    attempts: int
    backoff: float
    backoff_max: float

    def delay(self, failures: int) -> float:
        """Returns the seconds until the next attempt: twice as long each time, with jitter."""
        most = min(self.backoff_max, self.backoff * 2.0 ** min(failures - 1, 30))
        return most * (0.5 + random.random() / 2)  # noqa: S311


class QueueFlows:
    """The operations on one queue."""

    def __init__(self, name: str) -> None:
        if not name:
            raise ValueError("name: is empty: write the name of a queue")
        self.name = name
        self._path = f"/v1/queues/{quote(name, safe='')}"

    def send(
        self,
        body: Body,
        job: Optional[str],
        type: Optional[str],
        delay: Optional[Seconds],
        priority: int,
        headers: Optional[Mapping[str, str]],
        max_attempts: Optional[int],
    ) -> Flow[str]:
        """Sends a message and returns its id."""
        message = message_json(body, job, type, delay, priority, headers, max_attempts)
        # Without a job id, a message that is sent twice could not be recognised.
        answer = yield from self._post("/send", message, idempotent=job is not None)
        return str(answer["id"])

    def send_batch(self, bodies: Iterable[Body], type: Optional[str], delay: Optional[Seconds]) -> Flow[List[str]]:
        """Sends messages and returns their ids."""
        messages = [message_json(body, None, type, delay, 0, None, None) for body in bodies]
        ids: List[str] = []
        for start in range(0, len(messages), _BATCH_MAX):
            part = {"messages": messages[start : start + _BATCH_MAX]}
            answer = yield from self._post("/send-batch", part, idempotent=False)
            for result in answer["results"]:
                if "problem" in result:
                    _raise(result["problem"], f"{len(ids)} messages were sent, then one failed: ")
                ids.append(str(result["id"]))
        return ids

    def receive(self, max: int, wait: Seconds, lease: Optional[Seconds]) -> Flow[List[Message]]:
        """Waits for messages and leases them."""
        body: Dict[str, Any] = {"max": max, "wait": span(wait), "format": "base64"}
        if lease is not None:
            body["lease"] = span(lease)
        answer = yield from self._post("/receive", body, timeout=seconds(wait) + _ANSWER_SECONDS)
        return [_message(message) for message in answer["messages"]]

    def delete_batch(self, messages: Sequence[Message]) -> Flow[None]:
        """Acknowledges messages: all that can be, and raises the first problem of the others."""
        failed: Optional[Mapping[str, Any]] = None
        for start in range(0, len(messages), _BATCH_MAX):
            handles = [message.handle for message in messages[start : start + _BATCH_MAX]]
            answer = yield from self._post("/ack", {"handles": handles})
            problems = [result["problem"] for result in answer["results"] if "problem" in result]
            failed = failed or next(iter(problems), None)
        if failed is not None:
            _raise(failed)

    def settle(self, operation: str, message: Message, **more: Any) -> Flow[None]:
        """Settles a message: ``ack``, ``defer``, ``retry``, ``requeue`` or ``dead-letter``."""
        yield from self._post(f"/{operation}", {"handle": message.handle, **more})

    def extend(self, message: Message, lease: Optional[Seconds]) -> Flow[datetime]:
        """Extends a lease. Returns its end."""
        more = {} if lease is None else {"lease": span(lease)}
        answer = yield from self._post("/extend", {"handle": message.handle, **more})
        return parse_time(answer["leaseUntil"])

    def processed(self, message: Message, error: Optional[BaseException], rules: Attempts) -> Flow[None]:
        """Settles a message whose processing ended, perhaps with an exception."""
        if error is None:
            yield from self.settle("ack", message)
            return
        if isinstance(error, Defer):
            yield from self.settle("defer", message, delay=span(error.delay))
            return
        failures = message.attempt + 1
        attempts = rules.attempts if message.max_attempts is None else message.max_attempts
        if isinstance(error, Reject) or failures >= attempts:
            log.warning("job %s of %s is a dead letter: %s", message.job, self.name, error)
            yield from self.settle("dead-letter", message, error=error_json(error))
            return
        delay = rules.delay(failures)
        log.warning("job %s of %s failed (attempt %d), retrying: %s", message.job, self.name, failures, error)
        yield from self.settle("retry", message, delay=span(delay))

    def depth(self) -> Flow[Depth]:
        """Returns the number of messages."""
        answer = yield from self._call(Call("GET", self._path))
        return Depth(
            ready=answer["ready"],
            delayed=answer["delayed"],
            in_flight=answer["inFlight"],
            dead_letters=answer["deadLetters"],
            dead_letter_queue=answer["deadLetterQueue"],
        )

    def _post(
        self, path: str, body: Mapping[str, Any], idempotent: bool = True, timeout: Optional[float] = None
    ) -> Flow[Dict[str, Any]]:
        data = json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()
        return (yield from self._call(Call("POST", self._path + path, data, idempotent, timeout)))

    def _call(self, call: Call) -> Flow[Dict[str, Any]]:
        try:
            response = yield call
            return decode_answer(response)
        except TransportError as error:
            raise Unavailable(f"the queue {self.name} does not answer: {error}") from error
        except ApiError as error:
            if error.reason in _LOST:
                raise LeaseLost(error.status, error.detail, None, error.reason) from error
            raise


def message_json(
    body: Body,
    job: Optional[str],
    type: Optional[str],
    delay: Optional[Seconds],
    priority: int,
    headers: Optional[Mapping[str, str]],
    max_attempts: Optional[int],
) -> Dict[str, Any]:
    """Returns the JSON object of a message to send."""
    message: Dict[str, Any] = {}
    if isinstance(body, (bytes, bytearray, memoryview)):
        message["base64"] = base64.b64encode(body).decode()
    elif isinstance(body, str):
        message["text"] = body
    else:
        message["body"] = body
    if job is not None:
        message["job"] = job
    if type is not None:
        message["type"] = type
    if delay is not None and seconds(delay) > 0:
        message["delay"] = span(delay)
    if priority:
        message["priority"] = priority
    if headers:
        message["headers"] = dict(headers)
    if max_attempts is not None:
        message["maxAttempts"] = max_attempts
    return message


def error_json(error: Union[BaseException, str]) -> Dict[str, str]:
    """Returns the JSON object of the reason of a dead letter."""
    if isinstance(error, str):
        return {"message": error}
    name = type(error).__name__
    text = str(error) or name
    stack = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return {"message": text if isinstance(error, Reject) else f"{name}: {text}", "stack": stack}


def seconds(span: Seconds) -> float:
    """Returns a time span in seconds."""
    return span.total_seconds() if isinstance(span, timedelta) else float(span)


def span(value: Seconds) -> str:
    """Returns a time span in the form of the service."""
    millis = round(seconds(value) * 1000)
    if millis < 0:
        raise ValueError(f"{value!r}: must not be negative")
    return f"{millis // 1000}s" if millis % 1000 == 0 else f"{millis}ms"


def _message(answer: Mapping[str, Any]) -> Message:
    sent_at = answer.get("sentAt")
    return Message(
        body=base64.b64decode(answer["base64"]),
        job=answer["job"],
        id=answer["id"],
        type=answer.get("type"),
        attempt=answer["attempt"],
        deferrals=answer["deferrals"],
        redeliveries=answer["redeliveries"],
        priority=answer["priority"],
        max_attempts=answer.get("maxAttempts"),
        headers=answer.get("headers") or {},
        content_type=answer.get("contentType"),
        sent_at=None if sent_at is None else parse_time(sent_at),
        lease_until=parse_time(answer["leaseUntil"]),
        handle=answer["handle"],
    )


def _raise(problem: Mapping[str, Any], prefix: str = "") -> NoReturn:
    reason = problem.get("reason")
    kind = LeaseLost if reason in _LOST else ApiError
    raise kind(int(problem["status"]), prefix + str(problem["detail"]), problem.get("field"), reason)
