"""Django: `RateLimitMiddleware` limits all requests and adds the rate limit header fields to every answer.

Settings: ``SLUICEGATE`` is a dictionary with ``DIMENSIONS`` (the dotted path of a function that returns the dimensions
of a request, or None if it is not limited), and optionally ``URL``, ``TOKEN``, ``TIMEOUT``, ``ON_UNAVAILABLE``,
``COST`` and ``SKIP_WHEN``.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from typing import Any, Callable, Optional, Union

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpResponse
from django.utils.module_loading import import_string

from ._async_limiter import AsyncLease, AsyncLimiter
from ._context import RequestDecisions, current_decisions
from ._errors import Denied
from ._limiter import Lease, Limiter
from ._types import CostLike, Decision, hold_of

__all__ = ["RateLimitMiddleware", "settle_with"]

_KNOWN = ("COST", "DIMENSIONS", "ON_UNAVAILABLE", "SKIP_WHEN", "TIMEOUT", "TOKEN", "URL")


class RateLimitMiddleware:
    """Limits the requests of a Django project, under WSGI and ASGI."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        options = dict(getattr(settings, "SLUICEGATE", {}))
        unknown = sorted(set(options) - set(_KNOWN))
        if unknown:
            raise ImproperlyConfigured(f"SLUICEGATE: unknown option {unknown[0]!r} (known: {', '.join(_KNOWN)})")
        self._get_response = get_response
        self._dimensions = _function(options.get("DIMENSIONS"))
        self._skip_when = _function(options.get("SKIP_WHEN"))
        cost = options.get("COST")
        self._cost = _function(cost) if isinstance(cost, str) else cost
        self._is_async = iscoroutinefunction(get_response)
        arguments = {
            "token": options.get("TOKEN"),
            "timeout": options.get("TIMEOUT", 1.0),
            "on_unavailable": options.get("ON_UNAVAILABLE", "closed"),
        }
        if self._is_async:
            markcoroutinefunction(self)
            self._async_limiter = AsyncLimiter(options.get("URL"), **arguments)
        else:
            self._limiter = Limiter(options.get("URL"), **arguments)

    def __call__(self, request: Any) -> Any:
        if self._is_async:
            return self._acall(request)
        decisions = RequestDecisions()
        token = current_decisions.set(decisions)
        try:
            lease = None
            question = self._question(request)
            if question is not None:
                decision = self._limiter._admit(question[0], cost=question[1], hold=hold_of(question[1], None))
                decisions.decisions.append(decision)
                if not decision.allowed:
                    return _refusal(decision)
                lease = request.sluicegate_lease = _RequestLease(self._limiter.keep(decision))
            try:
                response = self._get_response(request)
            except BaseException:
                if lease is not None:
                    lease.finish()
                raise
            if lease is not None:
                if getattr(response, "streaming", False):
                    _end_with(response, lease.finish, lease.finish_in_thread)
                else:
                    lease.finish()
            return _with_headers(response, decisions)
        finally:
            current_decisions.reset(token)

    async def _acall(self, request: Any) -> Any:
        decisions = RequestDecisions()
        token = current_decisions.set(decisions)
        try:
            lease = None
            question = self._question(request)
            if question is not None:
                decision = await self._async_limiter._admit(question[0], cost=question[1], hold=hold_of(question[1], None))
                decisions.decisions.append(decision)
                if not decision.allowed:
                    return _refusal(decision)
                lease = request.sluicegate_lease = _RequestLease(self._async_limiter.keep(decision))
            try:
                response = await self._get_response(request)
            except BaseException:
                if lease is not None:
                    await lease.afinish()
                raise
            if lease is not None:
                if getattr(response, "streaming", False):
                    finish = lease.finish_in_loop(asyncio.get_running_loop())
                    _end_with(response, finish, finish)
                else:
                    await lease.afinish()
            return _with_headers(response, decisions)
        finally:
            current_decisions.reset(token)

    def process_exception(self, request: Any, error: Exception) -> Optional[Any]:
        """Answers a request that a decorator denied."""
        return _refusal(error.decision) if isinstance(error, Denied) else None

    def _question(self, request: Any) -> Any:
        if self._dimensions is None or (self._skip_when is not None and self._skip_when(request)):
            return None
        dimensions = self._dimensions(request)
        if dimensions is None:
            return None
        return dimensions, self._cost(request) if callable(self._cost) else self._cost


class _RequestLease:
    """The lease of a request, and the cost that its view has set. It does not refer to the request or its answer."""

    def __init__(self, lease: Union[Lease, AsyncLease]) -> None:
        self._lease: Any = lease
        self.cost: Optional[CostLike] = None

    def finish(self) -> None:
        self._lease.finish(self.cost)

    def finish_in_thread(self) -> None:
        threading.Thread(target=self.finish, name="sluicegate-finish", daemon=True).start()

    async def afinish(self) -> None:
        await self._lease.finish(self.cost)

    def finish_in_loop(self, loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
        """Returns a function that ends the lease from any thread."""

        def finish() -> None:
            if not loop.is_closed():
                asyncio.run_coroutine_threadsafe(self.afinish(), loop)

        return finish


def _end_with(response: Any, closed: Callable[[], None], dropped: Callable[[], None]) -> None:
    """Calls ``closed`` when a streamed answer is closed, which the server does after its last byte.

    Another middleware may replace the answer without closing it: then ``dropped`` is called when Python frees it, in
    any thread and at any time.
    """
    guard = weakref.finalize(response, dropped)
    guard.atexit = False

    def close() -> None:
        if guard.detach() is not None:
            closed()

    # Django's own list of what ends with an answer. The content itself is left as it is: it may be synchronous or not,
    # or a file that the server sends by itself.
    response._resource_closers.append(close)


def settle_with(request: Any, cost: CostLike) -> None:
    """Settles the admission of a request with this cost when the answer has been sent."""
    lease = getattr(request, "sluicegate_lease", None)
    if lease is not None:
        lease.cost = cost


def _function(option: Any) -> Any:
    return import_string(option) if isinstance(option, str) else option


def _with_headers(response: Any, decisions: RequestDecisions) -> Any:
    for name, value in decisions.headers():
        response.headers.setdefault(name, value)
    return response


def _refusal(decision: Decision) -> Any:
    response = HttpResponse(decision.body, status=decision.status, content_type="application/json")
    for name, value in decision.headers:
        response[name] = value
    return response
