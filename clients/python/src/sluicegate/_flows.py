"""The operations of the service, written once for the synchronous and the asynchronous limiter.

An operation is a generator: it yields the HTTP exchanges and pauses that it needs, and returns its result. A limiter
runs the generator with its own transport.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
import uuid
from dataclasses import dataclass
from typing import Any, Awaitable, Callable, Dict, Generator, Mapping, NoReturn, Optional, TypeVar, Union, cast
from urllib.parse import quote

from ._errors import ApiError, Denied, Unavailable
from ._types import (
    ClientDimensions,
    CostLike,
    Decision,
    Dimensions,
    Hold,
    Limits,
    Settlement,
    Stats,
    cost_json,
    hold_text,
    parse_time,
)
from ._wire import Call, Response, TransportError

log = logging.getLogger("sluicegate")

#: Shortest, first and longest time before its start at which a booking is claimed, in seconds: about a round trip. The
#: service accepts at most 1 s.
LEAD_MIN, LEAD_FIRST, LEAD_MAX = 0.005, 0.02, 0.5
#: Number of turns that may come too late before the call fails.
LATE_MAX = 5

#: Header fields of a decision that an application passes on to its own client.
PASSED_ON = (
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "retry-after",
    "ratelimit-policy",
    "ratelimit",
)
#: Behaviours while the service does not answer.
POLICIES = ("open", "closed", "raise")

# After this many failures in a row, the policy decides at once for a short time, so that every request of the
# application does not wait for the timeout while the service is down.
_FAILURES_MAX = 5
_PAUSE_SECONDS = 0.5

# Operations that end an admission if its caller is cancelled before it hears of it. A booking is given back.
_UNHEARD = {"acquire": "release", "book": "cancel"}
# Status of answers to invalid requests.
_INVALID = (400, 413, 422)

# `json.dumps` with options makes an encoder for each call.
_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)

T = TypeVar("T")


@dataclass(frozen=True)
class Sleep:
    """A pause of a flow."""

    seconds: float


Step = Union[Call, Sleep]
Flow = Generator[Step, Optional[Response], T]
#: An admission: the decision or its handle.
Admission = Union[Decision, str]
#: Called with the error and the policy that decided, each time that the service did not answer.
FailureHook = Callable[[Exception, str], None]


class Flows:
    """The operations of a limiter, its failure policy and its counters."""

    def __init__(self, on_unavailable: str, on_failure: Optional[FailureHook]) -> None:
        if on_unavailable not in POLICIES:
            raise ValueError(f"on_unavailable {on_unavailable!r}: write one of {', '.join(POLICIES)}")
        self.policy = on_unavailable
        self.stats = Stats()
        self._on_failure = on_failure
        self._failures = 0
        self._paused_until = 0.0
        self._warned = False
        self._is_refused = False
        self._lead = LEAD_FIRST

    # Decisions

    def decide(
        self,
        operation: str,
        dimensions: Optional[Dimensions],
        cost: Optional[CostLike] = None,
        limits: Limits = (),
        hold: Optional[Hold] = None,
        id: Optional[str] = None,
        options: str = "",
    ) -> Flow[Decision]:
        """Asks for a decision: ``check``, ``acquire`` or ``book``."""
        body = _dump(request_json(dimensions, cost, limits, hold, id))
        if time.monotonic() < self._paused_until:
            return self._unavailable(TransportError(f"{self._failures} calls failed in a row"), asked=False)
        # Without an id, a request that is sent twice would be charged twice.
        idempotent = operation == "check" or id is not None
        try:
            path = f"/v1/{operation}?status=429{options}"
            response = yield Call("POST", path, body, idempotent, unheard=_UNHEARD.get(operation))
            assert response is not None
            decision = decode_decision(response)
        except TransportError as error:
            return self._unavailable(error, asked=True)
        self._failures = 0
        self._is_refused = False
        if decision.allowed:
            self.stats.allowed += 1
        else:
            self.stats.denied += 1
        return decision

    def _unavailable(self, error: TransportError, asked: bool) -> Decision:
        if asked:
            self._failures += 1
            if self._failures >= _FAILURES_MAX and self.policy != "raise":
                self._paused_until = time.monotonic() + _PAUSE_SECONDS
        self._report(error, self.policy)
        return self._without_answer(error)

    def refused(self, error: ApiError) -> Decision:
        """Returns the decision of a middleware after an error answer of the service.

        An invalid request comes from the client of the application, which gets 400. Any other error, such as an unknown
        token, is a mistake in the configuration of this limiter: ``on_unavailable`` decides.
        """
        if error.status in _INVALID:
            body = _dump({"detail": error.detail, "allowed": False, "reason": "INVALID_REQUEST"})
            return Decision(allowed=False, status=400, reason="INVALID_REQUEST", detail=error.detail, body=body)
        # One line until the next decision, not one per request: the counters and the hook see each of them.
        level = logging.DEBUG if self._is_refused else logging.ERROR
        self._is_refused = True
        log.log(level, "the service refuses this limiter: %s: check url and token (on_unavailable: %s)", error, self.policy)
        if self._on_failure is not None:
            self._on_failure(error, self.policy)
        return self._without_answer(error)

    def _without_answer(self, error: Exception) -> Decision:
        """Decides by the policy."""
        if self.policy == "raise":
            raise Unavailable(f"the limiter does not answer: {error}") from error
        if self.policy == "open":
            self.stats.failed_open += 1
            return Decision(allowed=True, status=200, source="fail_open")
        self.stats.failed_closed += 1
        detail = "the rate limiter does not answer: retry later"
        return Decision(
            allowed=False,
            status=503,
            source="fail_closed",
            reason="LIMITER_UNAVAILABLE",
            detail=detail,
            retry_after=1.0,
            headers=(("retry-after", "1"),),
            body=_dump({"detail": detail, "allowed": False, "reason": "LIMITER_UNAVAILABLE"}),
        )

    def _report(self, error: Exception, policy: str) -> None:
        # One line per outage, not one per request: the counters and the hook see each of them.
        level = logging.WARNING if self._failures <= 1 else logging.DEBUG
        log.log(level, "limiter does not answer: %s (on_unavailable: %s)", error, policy)
        if self._on_failure is not None:
            self._on_failure(error, policy)

    # The end of an admission

    def settle(self, admission: Admission, cost: CostLike) -> Flow[Settlement]:
        """Replaces the estimate of an admission with its actual cost."""
        handle = _handle(admission)
        if handle is None:
            if isinstance(admission, Decision) and not admission.failed and not self._warned:
                self._warned = True
                log.warning(
                    "a settlement had no effect: no rule that applies to the request limits tokens, money or "
                    "concurrency, or the request had a cost without hold="
                )
            return Settlement(recorded=False)
        body = {"handle": handle, "cost": cost_json(cost)}
        answer = yield from self._end("/v1/settle", body)
        if answer is None:
            return Settlement(recorded=False)
        return Settlement(True, bool(answer.get("replayed")), answer.get("metadata") or {})

    def end(self, operation: str, admission: Admission) -> Flow[bool]:
        """Ends an admission: ``release`` or ``cancel``. Returns False if the service did not record it."""
        handle = _handle(admission)
        if handle is None:
            return False
        answer = yield from self._end(f"/v1/{operation}", {"handle": handle})
        return answer is not None

    def _end(self, path: str, body: Mapping[str, Any]) -> Flow[Optional[Dict[str, Any]]]:
        try:
            response = yield Call("POST", path, _dump(body))
            return decode_answer(response)
        except TransportError as error:
            self.stats.unsettled += 1
            self._report(error, self.policy)
            if self.policy == "raise":
                raise Unavailable(f"the limiter does not answer: {error}") from error
            return None

    def renew(self, admission: Admission) -> Flow[Optional[float]]:
        """Extends the lease of an admission. Returns the seconds until it ends, or None without a lease."""
        handle = _handle(admission)
        if handle is None:
            return None
        answer = yield from self._ask(Call("POST", "/v1/renew", _dump({"handle": handle})))
        return _seconds_between(answer.get("at"), answer.get("until"))

    # Questions that use no capacity

    def post(self, path: str, body: Mapping[str, Any]) -> Flow[Dict[str, Any]]:
        """Sends a body and returns the answer."""
        return (yield from self._ask(Call("POST", path, _dump(body))))

    def user_usage(self, user_id: str) -> Flow[Dict[str, Any]]:
        """Reads the usage of a user per window, and its budget."""
        return (yield from self._ask(Call("GET", f"/v1/users/{quote(user_id, safe='')}/usage")))

    def _ask(self, call: Call) -> Flow[Dict[str, Any]]:
        try:
            response = yield call
            return decode_answer(response)
        except TransportError as error:
            raise Unavailable(f"the limiter does not answer: {error}") from error

    # Bookings

    def until_ready(
        self,
        dimensions: Optional[Dimensions],
        cost: Optional[CostLike],
        limits: Limits,
        hold: Optional[Hold],
        wait_max: Optional[float],
    ) -> Flow[Decision]:
        """Books the earliest start, waits for it and claims it. Raises ``Denied`` if the wait would be too long."""
        began = time.monotonic()
        id = uuid.uuid4().hex
        request = request_json(dimensions, cost, limits, hold, id)
        options = f"&lead={_milliseconds(self._lead)}"
        booking = yield from self.decide("book", dimensions, cost, limits, hold, id, options)
        if not booking.allowed:
            raise Denied(booking)
        if booking.failed:
            return booking
        self._measured(time.monotonic() - began)
        ready = False
        try:
            wait = _seconds_between(booking.json.get("at"), booking.json.get("start")) or 0.0
            claimants, late = 0, 0
            while True:
                if wait_max is not None and time.monotonic() - began + wait > wait_max:
                    detail = f"the request could start in {wait:.3f} s, later than wait_max ({wait_max} s)"
                    raise Denied(
                        Decision(False, 429, reason="WAIT_TOO_LONG", detail=detail, retry_after=wait, json=booking.json)
                    )
                # The claim is sent about a round trip before the start, so that its answer arrives in time.
                lead = self._lead
                if wait > lead:
                    yield Sleep(wait - lead)
                claim = {
                    "request": request,
                    "claimant": f"{id}-{claimants}",
                    "lead": _milliseconds(lead),
                }
                asked = time.monotonic()
                try:
                    if late >= LATE_MAX:
                        raise TransportError(f"{late} turns came too late: set booking.slack to more than a round trip")
                    response = yield Call("POST", "/v1/claim", _dump(claim))
                    assert response is not None
                    answer = decode_answer(response)
                    self._measured(time.monotonic() - asked)
                except TransportError as error:
                    decision = self._unavailable(error, asked=True)
                    if decision.allowed:
                        ready = True
                        return decision
                    raise Denied(decision) from error
                state = answer.get("claim")
                if state == "go":
                    # Start not before `waitMs` after the answer, and within `goodMs` of the question.
                    if answer.get("waitMs", 0) > 0:
                        yield Sleep(answer["waitMs"] / 1000)
                    overrun = time.monotonic() - asked - answer["goodMs"] / 1000
                    if overrun > 0:
                        self._measured(lead + overrun)
                        claimants += 1  # The answer came too late: claim again under another name.
                        late += 1
                        wait = 0.0
                        continue
                    ready = True
                    headers = tuple((name, response.headers[name]) for name in PASSED_ON if name in response.headers)
                    return _decision(answer, 200, headers, response.body)
                if state == "denied":
                    # No concurrency slot is free yet: the booking is kept while we wait.
                    retry = answer.get("retryAfterMs")
                    if retry is None:
                        raise Denied(_decision({**answer, "allowed": False}, 429, (), response.body))
                    wait = max(0.01, retry / 1000)
                elif state == "spent":
                    claimants += 1  # We did not start: claim again under another name.
                    wait = 0.0
                else:
                    wait = max(0.0, answer.get("waitMs", 0) / 1000)
        finally:
            if not ready:
                self._forget(booking)

    def _measured(self, round_trip: float) -> None:
        """Adapts the lead of bookings and claims: to a longer round trip at once, to shorter ones slowly."""
        self._lead = min(LEAD_MAX, max(LEAD_MIN, round_trip, self._lead * 0.9))

    def _forget(self, booking: Decision) -> None:
        """Gives a booking back that is not used. The limiter replaces this method."""


def run_sync(flow: Flow[T], call: Callable[[Call], Response]) -> T:
    """Runs a flow with a blocking transport."""
    try:
        step = next(flow)
        while True:
            response = None
            try:
                if isinstance(step, Sleep):
                    time.sleep(step.seconds)
                else:
                    response = call(step)
            except BaseException as error:  # Also KeyboardInterrupt: the flow gives its booking back.
                step = flow.throw(error)
            else:
                step = flow.send(response)
    except StopIteration as stop:
        return cast(T, stop.value)


async def run_async(flow: Flow[T], call: Callable[[Call], Awaitable[Response]]) -> T:
    """Runs a flow with an asyncio transport."""
    try:
        step = next(flow)
        while True:
            response = None
            try:
                if isinstance(step, Sleep):
                    await asyncio.sleep(step.seconds)
                else:
                    response = await call(step)
            except BaseException as error:  # Also CancelledError: the flow gives its booking back.
                step = flow.throw(error)
            else:
                step = flow.send(response)
    except StopIteration as stop:
        return cast(T, stop.value)


def without_none(dimensions: ClientDimensions) -> Dimensions:
    """Returns the dimensions that have a value."""
    return {name: value for name, value in dimensions.items() if value is not None}


def request_json(
    dimensions: Optional[Dimensions],
    cost: Optional[CostLike],
    limits: Limits,
    hold: Optional[Hold],
    id: Optional[str],
) -> Dict[str, Any]:
    """Returns the JSON object of a request."""
    request: Dict[str, Any] = {"dimensions": dict(dimensions or {})}
    for name, value in request["dimensions"].items():
        if not isinstance(value, str):
            kind = type(value).__name__
            raise TypeError(f"dimension {name}: must be a text, not {kind}: write str({value!r})")
    if id is not None:
        request["id"] = id
    if cost is not None:
        request["cost"] = cost_json(cost)
    if limits:
        request["limits"] = [limit.to_json() for limit in limits]
    if hold is not None:
        request["hold"] = hold_text(hold)
    return request


def decode_decision(response: Optional[Response]) -> Decision:
    """Reads the answer to check, acquire or book."""
    assert response is not None
    headers = tuple((name, response.headers[name]) for name in PASSED_ON if name in response.headers)
    answer = _load(response)
    if "allowed" in answer:
        return _decision(answer, response.status, headers, response.body)
    detail = str(answer.get("detail", ""))
    # The service is there and its own outage policy denies: this is a decision.
    if response.status == 503 and detail.startswith("STORE_"):
        reason = detail.partition(":")[0]
        body = _dump({"detail": detail, "allowed": False, "reason": reason})
        wait = response.headers.get("retry-after", "")
        return Decision(
            allowed=False,
            status=503,
            reason=reason,
            detail=detail,
            retry_after=float(wait) if wait.isdigit() else None,
            headers=headers,
            body=body,
            json={"allowed": False, "reason": reason},
        )
    _raise(response.status, answer)


def decode_answer(response: Optional[Response]) -> Dict[str, Any]:
    """Reads the answer to any other operation."""
    assert response is not None
    answer = _load(response)
    if response.status >= 300:
        _raise(response.status, answer)
    return answer


def _raise(status: int, answer: Mapping[str, Any]) -> NoReturn:
    detail = str(answer.get("detail", "no detail"))
    if status >= 500:
        raise TransportError(f"{status}: {detail}")
    raise ApiError(status, detail, answer.get("field"), answer.get("reason"))


def _decision(answer: Mapping[str, Any], status: int, headers: Any, body: bytes) -> Decision:
    retry_ms = answer.get("retryAfterMs")
    return Decision(
        allowed=answer["allowed"],
        status=status,
        id=answer.get("id"),
        handle=answer.get("handle"),
        reason=answer.get("reason"),
        scope_hit=answer.get("scopeHit"),
        detail=answer.get("detail"),
        retry_after=None if retry_ms is None else retry_ms / 1000,
        lease_seconds=_seconds_between(answer.get("at"), answer.get("until")),
        replayed=answer.get("replayed", False),
        headers=headers,
        body=body,
        json=answer,
    )


def _seconds_between(at: Optional[str], until: Optional[str]) -> Optional[float]:
    if at is None or until is None:
        return None
    # Both are times of the store's clock, so our own clock does not matter.
    return (parse_time(until) - parse_time(at)).total_seconds()


def _handle(admission: Admission) -> Optional[str]:
    return admission if isinstance(admission, str) else admission.handle


def _milliseconds(seconds: float) -> str:
    return f"{math.ceil(seconds * 1000)}ms"


def _dump(value: Mapping[str, Any]) -> bytes:
    return _ENCODER.encode(value).encode()


def _load(response: Response) -> Dict[str, Any]:
    try:
        answer = json.loads(response.body)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise TransportError(f"the answer ({response.status}) is not of a Sluicegate service: check the url")
    return answer
