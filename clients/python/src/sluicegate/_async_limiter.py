"""`AsyncLimiter`: the asyncio client of a Sluicegate service."""

from __future__ import annotations

import asyncio
import functools
import inspect
import ssl
from types import TracebackType
from typing import Any, Awaitable, Callable, Coroutine, Dict, Optional, Set, Tuple, Type, TypeVar, cast

from ._async_transport import AsyncTransport
from ._context import current_decisions, record
from ._decorate import CostOf, DimensionsOf, Limited, LimitsOf, SkipWhen
from ._errors import ApiError, Denied, SluicegateError
from ._flows import Admission, FailureHook, Flow, Flows, decode_decision, log, request_json, run_async, without_none
from ._limiter import user_request, user_stats
from ._types import ClientDimensions, CostLike, Decision, Dimensions, Hold, Limits, Scope, Settlement, Stats, hold_of
from ._wire import Endpoint, Response, TransportError

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class AsyncLimiter:
    """A client of a Sluicegate service for asyncio. One object serves the whole application.

    The options are those of `Limiter`.
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
        self._flows = _AsyncFlows(on_unavailable, on_failure, self)
        self._transport = AsyncTransport(Endpoint(url, token), timeout, connections_max, ssl_context)
        self._transport.on_unheard = lambda operation, answer: self.in_background(self._end_unheard(operation, answer))
        # Strong references: the event loop itself keeps only weak ones.
        self._tasks: Set[asyncio.Task[Any]] = set()

    @property
    def stats(self) -> Stats:
        """Counters since the creation of the limiter."""
        return self._flows.stats

    async def check(
        self,
        dimensions: Optional[Dimensions] = None,
        *,
        cost: Optional[CostLike] = None,
        limits: Limits = (),
    ) -> Decision:
        """Returns the decision that a request would get now. It uses no capacity."""
        return await self._run(self._flows.decide("check", dimensions, cost, limits))

    async def acquire(
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
        return await self._run(self._flows.decide("acquire", dimensions, cost, limits, hold, id))

    async def until_ready(
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
        return await self._run(self._flows.until_ready(dimensions, cost, limits, hold, wait_max))

    async def settle(self, admission: Admission, cost: CostLike) -> Settlement:
        """Replaces the estimate of an admission with its actual cost, and frees its concurrency slot."""
        return await self._run(self._flows.settle(admission, cost))

    async def release(self, admission: Admission) -> bool:
        """Frees the concurrency slot of an admission and keeps its charges. Without a handle it does nothing."""
        return await self._run(self._flows.end("release", admission))

    async def cancel(self, admission: Admission) -> bool:
        """Gives back all charges of an admission, because its work did not run."""
        return await self._run(self._flows.end("cancel", admission))

    async def renew(self, admission: Admission) -> Optional[float]:
        """Extends the lease of an admission. Returns the seconds until it ends."""
        return await self._run(self._flows.renew(admission))

    def lease(
        self,
        dimensions: Optional[Dimensions] = None,
        *,
        cost: Optional[CostLike] = None,
        limits: Limits = (),
        hold: Optional[Hold] = None,
        id: Optional[str] = None,
        wait_max: Optional[float] = None,
    ) -> AsyncLease:
        """Returns a context manager that acquires at its start and releases at its end.

        An estimate with tokens or dollars is held for 5 minutes if ``hold`` is not given.
        It raises ``Denied`` at its start; with ``wait_max`` it first waits for its turn. It renews the lease in the
        background for as long as the block runs.
        """
        if wait_max is not None and id is not None:
            raise ValueError("id: can't be combined with wait_max, which makes an id of its own")
        hold = hold_of(cost, hold)

        async def acquire() -> Decision:
            if wait_max is not None:
                return await self.until_ready(dimensions, cost=cost, limits=limits, hold=hold, wait_max=wait_max)
            return await self.acquire(dimensions, cost=cost, limits=limits, hold=hold, id=id)

        return AsyncLease(self, acquire)

    def keep(self, decision: Decision) -> AsyncLease:
        """Returns the lease of an admission. It is renewed until it ends: call ``finish`` in every case."""

        async def acquire() -> Decision:
            return decision

        lease = AsyncLease(self, acquire)
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
        """Limits a coroutine function: acquires before each call and releases after it. Raises ``Denied``.

        Each option may be a function of arguments of the decorated function:
        ``@limiter.limit(lambda user_id: {"userId": user_id})``.
        """
        limited = Limited(dimensions, cost, limits, skip_when)

        def decorate(function: F) -> F:
            if not inspect.iscoroutinefunction(function):
                raise TypeError(f"{function!r} is not a coroutine function: write async def, or use Limiter.limit")
            picker = limited.picker(function)

            @functools.wraps(function)
            async def call(*args: Any, **kwargs: Any) -> Any:
                request = limited.request(picker, args, kwargs)
                if request is None:
                    return await function(*args, **kwargs)
                lease = self.lease(**request, hold=hold, wait_max=wait_max)
                lease._is_for_client = current_decisions.get() is not None
                async with lease:
                    return await function(*args, **kwargs)

            return cast(F, call)

        return decorate

    async def usage(self, dimensions: Dimensions) -> Tuple[Scope, ...]:
        """Returns the usage of all limits that apply to these dimensions."""
        answer = await self._run(self._flows.post("/v1/usage", request_json(dimensions, None, (), None, None)))
        return tuple(Scope.from_json(scope) for scope in answer["scopes"])

    async def explain(self, dimensions: Dimensions) -> Dict[str, Any]:
        """Returns which rules match, which do not, and why."""
        return await self._run(self._flows.post("/v1/explain", request_json(dimensions, None, (), None, None)))

    async def check_rate_limit(
        self, user_id: object, limit: Optional[str] = None, *, dimensions: Optional[Dimensions] = None
    ) -> Decision:
        """Charges one request of a user. ``limit`` adds a limit per user, such as ``"10/minute"``."""
        request, limits = user_request(user_id, limit, dimensions)
        return await self.acquire(request, limits=limits)

    async def get_user_stats(self, user_id: object, *, unix_time: bool = False) -> Dict[str, Any]:
        """Returns the usage of a user per minute, hour and day, and its budget. It uses no capacity.

        ``unix_time`` returns ``user_id`` as it was passed in and ``timestamp`` in Unix seconds.
        """
        return user_stats(await self._run(self._flows.user_usage(str(user_id))), user_id, unix_time)

    async def close(self) -> None:
        """Waits for settlements in the background and closes idle connections."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        await self._transport.close()

    async def __aenter__(self) -> AsyncLimiter:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def in_background(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Runs ``work`` to its end, even if the caller is cancelled."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _admit(
        self, dimensions: ClientDimensions, *, cost: Optional[CostLike], limits: Limits = (), hold: Optional[Hold]
    ) -> Decision:
        """Acquires for a client of the application: an error of the service is a decision, not an exception.

        A dimension that is None is left out. The rules decide if that is allowed.
        """
        try:
            return await self.acquire(without_none(dimensions), cost=cost, limits=limits, hold=hold)
        except ApiError as error:
            return self._flows.refused(error)

    async def _run(self, flow: Flow[T]) -> T:
        return await run_async(flow, self._transport.call)

    async def _end_unheard(self, operation: str, answer: Awaitable[Response]) -> None:
        """Ends an admission whose caller was cancelled before it heard of it."""
        try:
            decision = decode_decision(await answer)
        except (ApiError, TransportError):
            return
        if decision.handle is not None and not decision.replayed:
            await self._end_quietly(operation, decision)

    async def _end_quietly(self, operation: str, decision: Decision) -> None:
        try:
            await self._run(self._flows.end(operation, decision))
        except SluicegateError as error:
            log.warning("an admission could not be ended: %s", error)


class AsyncLease:
    """An admission for the length of an ``async with`` block."""

    def __init__(self, limiter: AsyncLimiter, acquire: Callable[[], Awaitable[Decision]]) -> None:
        self._limiter = limiter
        self._acquire = acquire
        self._decision: Optional[Decision] = None
        self._ended = False
        self._timer: Optional[asyncio.TimerHandle] = None
        #: True if a middleware shows the denial to a client of the application.
        self._is_for_client = False

    @property
    def decision(self) -> Decision:
        """The decision that admitted the work."""
        if self._decision is None:
            raise RuntimeError("the lease has not begun: use it in an async with statement")
        return self._decision

    @property
    def has_ended(self) -> bool:
        """True if the admission was settled, released or cancelled."""
        return self._ended

    async def settle(self, cost: CostLike) -> Settlement:
        """Replaces the estimate with the actual cost and ends the lease."""
        settlement = await self._limiter.settle(self.decision, cost)
        self._end()
        return settlement

    async def release(self) -> None:
        """Ends the lease before the end of the block. The charges stay."""
        if not self._ended:
            self._end()
            await self._limiter.release(self.decision)

    async def cancel(self) -> None:
        """Ends the lease and gives back all charges, because the work did not run."""
        if not self._ended:
            self._end()
            await self._limiter.cancel(self.decision)

    def _end(self) -> None:
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()

    def _renew_in(self, seconds: float) -> None:
        def start() -> None:
            self._limiter.in_background(self._renew())

        # Half of the time is left for a call that has to be repeated.
        self._timer = asyncio.get_running_loop().call_later(seconds / 2, start)

    async def _renew(self) -> None:
        try:
            seconds = await self._limiter.renew(self.decision)
        except SluicegateError as error:
            log.warning("a lease could not be renewed: %s", error)
            seconds = None if getattr(error, "status", None) else 0.5
        if seconds is not None and not self._ended:
            self._renew_in(seconds)

    async def __aenter__(self) -> AsyncLease:
        try:
            decision = self._decision = await self._acquire()
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
            self._renew_in(decision.lease_seconds)

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        await self.finish()

    async def finish(self, cost: Optional[CostLike] = None) -> None:
        """Settles or releases the admission, unless it has ended. A failure is counted and logged, not raised."""
        if self._ended:
            return
        self._end()
        if self.decision.handle is not None:
            # A task of its own: the slot is given back even if the caller is cancelled.
            await asyncio.shield(self._limiter.in_background(self._finish(cost)))

    async def _finish(self, cost: Optional[CostLike]) -> None:
        try:
            if cost is not None:
                await self._limiter.settle(self.decision, cost)
            else:
                await self._limiter.release(self.decision)
        except SluicegateError as failure:
            # The work is done: its result must not be lost. The lease expires by itself.
            if isinstance(failure, ApiError):
                self._limiter.stats.unsettled += 1
            log.warning("an admission could not be ended: %s", failure)


class _AsyncFlows(Flows):
    def __init__(self, on_unavailable: str, on_failure: Optional[FailureHook], limiter: AsyncLimiter) -> None:
        super().__init__(on_unavailable, on_failure)
        self._limiter = limiter

    def _forget(self, booking: Decision) -> None:
        self._limiter.in_background(self._limiter._end_quietly("cancel", booking))
