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

from ._async_limiter import AsyncLimiter
from ._context import RequestDecisions, current_decisions
from ._errors import Denied, SluicegateError
from ._flows import log
from ._limiter import Limiter
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
            admission = None
            question = self._question(request)
            if question is not None:
                admission = self._limiter.acquire(question[0], cost=question[1], hold=hold_of(question[1], None))
                decisions.decisions.append(admission)
                if not admission.allowed:
                    return _refusal(admission)
            try:
                response = self._get_response(request)
            except BaseException:
                self._end(request, admission)
                raise
            if getattr(response, "streaming", False):
                response.streaming_content = self._stream(request, admission, response.streaming_content)
            else:
                self._end(request, admission)
            return _with_headers(response, decisions)
        finally:
            current_decisions.reset(token)

    async def _acall(self, request: Any) -> Any:
        decisions = RequestDecisions()
        token = current_decisions.set(decisions)
        try:
            admission = None
            question = self._question(request)
            if question is not None:
                admission = await self._async_limiter.acquire(question[0], cost=question[1], hold=hold_of(question[1], None))
                decisions.decisions.append(admission)
                if not admission.allowed:
                    return _refusal(admission)
            try:
                response = await self._get_response(request)
            except BaseException:
                await self._aend(request, admission)
                raise
            if getattr(response, "streaming", False) and response.is_async:
                response.streaming_content = self._astream(request, admission, response.streaming_content)
            else:
                await self._aend(request, admission)
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

    def _stream(self, request: Any, admission: Optional[Decision], content: Any) -> Iterator[Any]:
        try:
            yield from content
        finally:
            self._end(request, admission)

    async def _astream(self, request: Any, admission: Optional[Decision], content: Any) -> AsyncIterator[Any]:
        try:
            async for part in content:
                yield part
        finally:
            await self._aend(request, admission)

    def _end(self, request: Any, admission: Optional[Decision]) -> None:
        if admission is None or admission.handle is None:
            return
        cost = getattr(request, "sluicegate_cost", None)
        try:
            if cost is not None:
                self._limiter.settle(admission, cost)
            else:
                self._limiter.release(admission)
        except SluicegateError as failure:
            self._limiter.stats.unsettled += 1
            log.warning("an admission could not be ended: %s", failure)

    async def _aend(self, request: Any, admission: Optional[Decision]) -> None:
        if admission is None or admission.handle is None:
            return
        cost = getattr(request, "sluicegate_cost", None)

        async def end(admission: Decision) -> None:
            try:
                if cost is not None:
                    await self._async_limiter.settle(admission, cost)
                else:
                    await self._async_limiter.release(admission)
            except SluicegateError as failure:
                self._async_limiter.stats.unsettled += 1
                log.warning("an admission could not be ended: %s", failure)

        await asyncio.shield(self._async_limiter.in_background(end(admission)))


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
