"""Django: `RateLimitMiddleware` limits all requests and adds the rate limit header fields to every answer.

Settings: ``SLUICEGATE`` is a dictionary with ``DIMENSIONS`` (the dotted path of a function that returns the dimensions
of a request, or None if it is not limited), and optionally ``URL``, ``TOKEN``, ``TIMEOUT``, ``ON_UNAVAILABLE``,
``COST`` and ``SKIP_WHEN``.
"""

from __future__ import annotations

import asyncio
from typing import Any, AsyncIterator, Callable, Iterator, Optional

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
                decision = self._limiter.acquire(question[0], cost=question[1], hold=hold_of(question[1], None))
                decisions.decisions.append(decision)
                if not decision.allowed:
                    return _refusal(decision)
                lease = self._limiter.keep(decision)
            try:
                response = self._get_response(request)
            except BaseException:
                _end(request, lease)
                raise
            if getattr(response, "streaming", False):
                response.streaming_content = _Stream(request, lease, response.streaming_content)
            else:
                _end(request, lease)
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
                decision = await self._async_limiter.acquire(question[0], cost=question[1], hold=hold_of(question[1], None))
                decisions.decisions.append(decision)
                if not decision.allowed:
                    return _refusal(decision)
                lease = self._async_limiter.keep(decision)
            try:
                response = await self._get_response(request)
            except BaseException:
                await _aend(request, lease)
                raise
            if getattr(response, "streaming", False) and response.is_async:
                response.streaming_content = _AsyncStream(request, lease, response.streaming_content)
            else:
                await _aend(request, lease)
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


class _Stream:
    """The content of a streamed answer. Django calls ``close`` also if nobody has read the content."""

    def __init__(self, request: Any, lease: Optional[Lease], content: Any) -> None:
        self._request = request
        self._lease = lease
        self._content = iter(content)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._content)

    def close(self) -> None:
        _end(self._request, self._lease)


class _AsyncStream:
    """The same for an asynchronous answer. Django calls ``close`` in another thread."""

    def __init__(self, request: Any, lease: Optional[AsyncLease], content: Any) -> None:
        self._request = request
        self._lease = lease
        self._content = content.__aiter__()
        self._loop = asyncio.get_running_loop()

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        return await self._content.__anext__()

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(_aend(self._request, self._lease), self._loop)


def _end(request: Any, lease: Optional[Lease]) -> None:
    if lease is not None:
        lease.finish(getattr(request, "sluicegate_cost", None))


async def _aend(request: Any, lease: Optional[AsyncLease]) -> None:
    if lease is not None:
        await lease.finish(getattr(request, "sluicegate_cost", None))


def settle_with(request: Any, cost: CostLike) -> None:
    """Settles the admission of a request with this cost when the answer has been sent."""
    request.sluicegate_cost = cost


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
