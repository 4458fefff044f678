"""`Limiter`: the synchronous client of a Sluicegate service."""

from __future__ import annotations

import functools
import heapq
import inspect
import ssl
import threading
import time
from types import TracebackType
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Type, TypeVar, cast

from ._context import current_decisions, record
from ._decorate import CostOf, DimensionsOf, Limited, LimitsOf, SkipWhen
from ._errors import ApiError, Denied, SluicegateError
from ._flows import Admission, FailureHook, Flow, Flows, log, request_json, run_sync, without_none
from ._sync_transport import SyncTransport
from ._types import (
    ClientDimensions,
    CostLike,
    Decision,
    Dimensions,
    Hold,
    InlineLimit,
    Limits,
    Scope,
    Settlement,
    Stats,
    hold_of,
)
from ._wire import Endpoint

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class Limiter:
    """A client of a Sluicegate service for threads. One object serves the whole application.

    ``url`` defaults to the variable ``SLUICEGATE_URL``, then to ``http://127.0.0.1:8080``; ``token`` to
    ``SLUICEGATE_TOKEN``. A call takes at most ``timeout`` seconds.

    ``on_unavailable`` decides while the service does not answer: ``"closed"`` denies with status 503, ``"open"``
    admits, ``"raise"`` raises ``Unavailable``. ``stats`` counts these decisions, and ``on_failure`` is called for each.
    """

    def __init__(
        self,
        url: Optional[str] = None,
        *,
        token: Optional[str] = None,
        timeout: float = 1.0,
        on_unavailable: str = "closed",
        on_failure: Optional[FailureHook] = None,
        connections_max: int = 64,
        ssl_context: Optional[ssl.SSLContext] = None,
    ) -> None:
        self._flows = _SyncFlows(on_unavailable, on_failure, self)
        self._transport = SyncTransport(Endpoint(url, token), timeout, connections_max, ssl_context)
        self._renewer = _Renewer(self)

    @property
    def stats(self) -> Stats:
        """Counters since the creation of the limiter."""
        return self._flows.stats

    def check(
        self,
        dimensions: Optional[Dimensions] = None,
        *,
        cost: Optional[CostLike] = None,
        limits: Limits = (),
    ) -> Decision:
        """Returns the decision that a request would get now. It uses no capacity."""
        return self._run(self._flows.decide("check", dimensions, cost, limits))

    def acquire(
        self,
        dimensions: Optional[Dimensions] = None,
        *,
        cost: Optional[CostLike] = None,
        limits: Limits = (),
        hold: Optional[Hold] = None,
        id: Optional[str] = None,
    ) -> Decision:
        """Charges a request on all limits that apply to it, or on none.

        ``hold`` is the time until an estimate expires that is not settled. A repeated ``id`` is charged once.
        """
        return self._run(self._flows.decide("acquire", dimensions, cost, limits, hold, id))

    def until_ready(
        self,
        dimensions: Optional[Dimensions] = None,
        *,
        cost: Optional[CostLike] = None,
        limits: Limits = (),
        hold: Optional[Hold] = None,
        wait_max: Optional[float] = None,
    ) -> Decision:
        """Waits for the turn of a request: books its earliest start and sleeps until then.

        Raises ``Denied`` if it never fits or would wait for more than ``wait_max`` seconds.
        """
        return self._run(self._flows.until_ready(dimensions, cost, limits, hold, wait_max))

    def settle(self, admission: Admission, cost: CostLike) -> Settlement:
        """Replaces the estimate of an admission with its actual cost, and frees its concurrency slot."""
        return self._run(self._flows.settle(admission, cost))

    def release(self, admission: Admission) -> bool:
        """Frees the concurrency slot of an admission and keeps its charges. Without a handle it does nothing."""
        return self._run(self._flows.end("release", admission))

    def cancel(self, admission: Admission) -> bool:
        """Gives back all charges of an admission, because its work did not run."""
        return self._run(self._flows.end("cancel", admission))

    def renew(self, admission: Admission) -> Optional[float]:
        """Extends the lease of an admission. Returns the seconds until it ends."""
        return self._run(self._flows.renew(admission))

    def lease(
        self,
        dimensions: Optional[Dimensions] = None,
        *,
        cost: Optional[CostLike] = None,
        limits: Limits = (),
        hold: Optional[Hold] = None,
        id: Optional[str] = None,
        wait_max: Optional[float] = None,
    ) -> Lease:
        """Returns a context manager that acquires at its start and releases at its end.

        An estimate with tokens or dollars is held for 5 minutes if ``hold`` is not given.
        It raises ``Denied`` at its start; with ``wait_max`` it first waits for its turn. It renews the lease in the
        background for as long as the block runs.
        """
        if wait_max is not None and id is not None:
            raise ValueError("id: can't be combined with wait_max, which makes an id of its own")
        hold = hold_of(cost, hold)

        def acquire() -> Decision:
            if wait_max is not None:
                return self.until_ready(dimensions, cost=cost, limits=limits, hold=hold, wait_max=wait_max)
            return self.acquire(dimensions, cost=cost, limits=limits, hold=hold, id=id)

        return Lease(self, acquire)

    def keep(self, decision: Decision) -> Lease:
        """Returns the lease of an admission. It is renewed until it ends: call ``finish`` in every case."""
        lease = Lease(self, lambda: decision)
        lease._begin(decision)
        return lease

    def limit(
        self,
        dimensions: Optional[DimensionsOf] = None,
        *,
        cost: Optional[CostOf] = None,
        limits: LimitsOf = (),
        skip_when: Optional[SkipWhen] = None,
        hold: Optional[Hold] = None,
        wait_max: Optional[float] = None,
    ) -> Callable[[F], F]:
        """Limits a function: acquires before each call and releases after it. Raises ``Denied``.

        Each option may be a function of arguments of the decorated function:
        ``@limiter.limit(lambda user_id: {"userId": user_id})``.
        """
        limited = Limited(dimensions, cost, limits, skip_when)

        def decorate(function: F) -> F:
            if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
                raise TypeError(f"{function!r} is asynchronous, and would end before its work: use AsyncLimiter.limit")
            if inspect.isgeneratorfunction(function):
                raise TypeError(f"{function!r} is a generator, and would end before its work: use lease in its body")
            picker = limited.picker(function)

            @functools.wraps(function)
            def call(*args: Any, **kwargs: Any) -> Any:
                request = limited.request(picker, args, kwargs)
                if request is None:
                    return function(*args, **kwargs)
                lease = self.lease(**request, hold=hold, wait_max=wait_max)
                lease._is_for_client = current_decisions.get() is not None
                with lease:
                    return function(*args, **kwargs)

            return cast(F, call)

        return decorate

    def usage(self, dimensions: Dimensions) -> Tuple[Scope, ...]:
        """Returns the usage of all limits that apply to these dimensions."""
        answer = self._run(self._flows.post("/v1/usage", request_json(dimensions, None, (), None, None)))
        return tuple(Scope.from_json(scope) for scope in answer["scopes"])

    def explain(self, dimensions: Dimensions) -> Dict[str, Any]:
        """Returns which rules match, which do not, and why."""
        return self._run(self._flows.post("/v1/explain", request_json(dimensions, None, (), None, None)))

    def check_rate_limit(
        self, user_id: object, limit: Optional[str] = None, *, dimensions: Optional[Dimensions] = None
    ) -> Decision:
        """Charges one request of a user. ``limit`` adds a limit per user, such as ``"10/minute"``."""
        request, limits = user_request(user_id, limit, dimensions)
        return self.acquire(request, limits=limits)

    def get_user_stats(self, user_id: object, *, unix_time: bool = False) -> Dict[str, Any]:
        """Returns the usage of a user per minute, hour and day, and its budget. It uses no capacity.

        ``unix_time`` returns ``user_id`` as it was passed in and ``timestamp`` in Unix seconds.
        """
        return user_stats(self._run(self._flows.user_usage(str(user_id))), user_id, unix_time)

    def close(self) -> None:
        """Closes idle connections and ends the renewal of leases."""
        self._renewer.stop()
        self._transport.close()

    def __enter__(self) -> Limiter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _admit(
        self, dimensions: ClientDimensions, *, cost: Optional[CostLike], limits: Limits = (), hold: Optional[Hold]
    ) -> Decision:
        """Acquires for a client of the application: an error of the service is a decision, not an exception.

        A dimension that is None is left out. The rules decide if that is allowed.
        """
        try:
            return self.acquire(without_none(dimensions), cost=cost, limits=limits, hold=hold)
        except ApiError as error:
            return self._flows.refused(error)

    def _run(self, flow: Flow[T]) -> T:
        return run_sync(flow, self._transport.call)


class Lease:
    """An admission for the length of a ``with`` block."""

    def __init__(self, limiter: Limiter, acquire: Callable[[], Decision]) -> None:
        self._limiter = limiter
        self._acquire = acquire
        self._decision: Optional[Decision] = None
        self._ended = False
        #: True if a middleware shows the denial to a client of the application.
        self._is_for_client = False

    @property
    def decision(self) -> Decision:
        """The decision that admitted the work."""
        if self._decision is None:
            raise RuntimeError("the lease has not begun: use it in a with statement")
        return self._decision

    def settle(self, cost: CostLike) -> Settlement:
        """Replaces the estimate with the actual cost and ends the lease."""
        settlement = self._limiter.settle(self.decision, cost)
        self._end()
        return settlement

    def release(self) -> None:
        """Ends the lease before the end of the block. The charges stay."""
        if not self._ended:
            self._end()
            self._limiter.release(self.decision)

    def cancel(self) -> None:
        """Ends the lease and gives back all charges, because the work did not run."""
        if not self._ended:
            self._end()
            self._limiter.cancel(self.decision)

    def _end(self) -> None:
        self._ended = True
        self._limiter._renewer.remove(self)

    def __enter__(self) -> Lease:
        try:
            decision = self._decision = self._acquire()
        except ApiError as error:
            if not self._is_for_client:
                raise
            decision = self._decision = self._limiter._flows.refused(error)
        record(decision)
        if not decision.allowed:
            raise Denied(decision)
        self._begin(decision)
        return self

    def _begin(self, decision: Decision) -> None:
        self._decision = decision
        if decision.lease_seconds is not None and decision.handle is not None:
            self._limiter._renewer.add(self, decision.lease_seconds)

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.finish()

    def finish(self, cost: Optional[CostLike] = None) -> None:
        """Settles or releases the admission, unless it has ended. A failure is counted and logged, not raised."""
        if self._ended:
            return
        self._end()
        try:
            if cost is not None:
                self._limiter.settle(self.decision, cost)
            else:
                self._limiter.release(self.decision)
        except SluicegateError as failure:
            # The work is done: its result must not be lost. The lease expires by itself.
            if isinstance(failure, ApiError):
                self._limiter.stats.unsettled += 1
            log.warning("an admission could not be ended: %s", failure)


class _SyncFlows(Flows):
    def __init__(self, on_unavailable: str, on_failure: Optional[FailureHook], limiter: Limiter) -> None:
        super().__init__(on_unavailable, on_failure)
        self._limiter = limiter

    def _forget(self, booking: Decision) -> None:
        try:
            self._limiter.cancel(booking)
        except SluicegateError as error:
            log.warning("a booking could not be cancelled: %s", error)


class _Renewer:
    """Renews leases in one background thread, which starts with the first lease."""

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter
        self._due: List[Tuple[float, int, Lease]] = []
        self._changed = threading.Condition()
        self._thread: Optional[threading.Thread] = None
        self._stopped = False

    def add(self, lease: Lease, seconds: float) -> None:
        with self._changed:
            # Half of the time is left for a call that has to be repeated.
            first = not self._due
            due = time.monotonic() + seconds / 2
            heapq.heappush(self._due, (due, id(lease), lease))
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, name="sluicegate-renew", daemon=True)
                self._stopped = False
                self._thread.start()
            elif first or self._due[0][0] == due:
                self._changed.notify()

    def remove(self, lease: Lease) -> None:
        with self._changed:
            # Usually the newest lease or one of a few: a scan is cheaper than a second index.
            for position, (_, _, entry) in enumerate(self._due):
                if entry is lease:
                    self._due[position] = self._due[-1]
                    self._due.pop()
                    heapq.heapify(self._due)
                    return

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._stopped and (not self._due or self._due[0][0] > time.monotonic()):
                    self._changed.wait(self._due[0][0] - time.monotonic() if self._due else None)
                if self._stopped:
                    return
                _, _, lease = heapq.heappop(self._due)
            try:
                seconds = self._limiter.renew(lease.decision)
            except SluicegateError as error:
                log.warning("a lease could not be renewed: %s", error)
                seconds = None if getattr(error, "status", None) else 0.5
            if seconds is not None and not lease._ended:
                self.add(lease, seconds)


def user_request(
    user_id: object, limit: Optional[str], dimensions: Optional[Dimensions]
) -> Tuple[Dict[str, str], Sequence[InlineLimit]]:
    """Returns the request of ``check_rate_limit``."""
    user = str(user_id)
    limits = () if limit is None else (InlineLimit("USER_LIMIT", user, limit),)
    return {"userId": user, **(dimensions or {})}, limits


def user_stats(stats: Dict[str, Any], user_id: object, unix_time: bool) -> Dict[str, Any]:
    """Returns the answer of ``get_user_stats`` in the form that was asked for."""
    if unix_time:
        from ._types import parse_time

        stats["user_id"] = user_id
        stats["timestamp"] = parse_time(stats["timestamp"]).timestamp()
    return stats
