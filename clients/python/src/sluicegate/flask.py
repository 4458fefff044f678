"""Flask: `RateLimits` limits all requests of an application and adds the rate limit header fields to every answer."""

from __future__ import annotations

from typing import Any, Callable, Iterable, Optional, Union

from flask import Flask, Request, Response, g, request
from werkzeug.wsgi import ClosingIterator

from ._context import RequestDecisions, current_decisions
from ._errors import Denied
from ._limiter import Lease, Limiter
from ._types import ClientDimensions, CostLike, Decision, Hold, Limits, hold_of

__all__ = ["RateLimits", "settle_with"]


class RateLimits:
    """A Flask extension. ``dimensions`` returns the dimensions of a request, or None if it is not limited.

    Without ``dimensions`` it limits nothing itself: it answers requests that `Limiter.limit` denies with 429 and adds
    the header fields.
    """

    def __init__(
        self,
        app: Optional[Flask] = None,
        limiter: Optional[Limiter] = None,
        dimensions: Optional[Callable[[Request], Optional[ClientDimensions]]] = None,
        *,
        cost: Union[CostLike, Callable[[Request], CostLike], None] = None,
        limits: Union[Limits, Callable[[Request], Limits]] = (),
        hold: Optional[Hold] = None,
        skip_when: Optional[Callable[[Request], bool]] = None,
    ) -> None:
        self._limiter = limiter or Limiter()
        self._dimensions = dimensions
        self._cost = cost
        self._limits = limits
        self._hold = hold
        self._skip_when = skip_when
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Adds the limits to an application."""
        app.before_request(self._before)
        app.after_request(self._after)
        app.teardown_request(self._teardown)
        app.register_error_handler(Denied, lambda denied: _refusal(denied.decision))

    def _before(self) -> Optional[Response]:
        decisions = RequestDecisions()
        g.sluicegate_token = current_decisions.set(decisions)
        g.sluicegate = decisions
        if self._dimensions is None or (self._skip_when is not None and self._skip_when(request)):
            return None
        dimensions = self._dimensions(request)
        if dimensions is None:
            return None
        cost = self._cost(request) if callable(self._cost) else self._cost
        limits = self._limits(request) if callable(self._limits) else self._limits
        decision = self._limiter._admit(dimensions, cost=cost, limits=limits, hold=hold_of(cost, self._hold))
        decisions.decisions.append(decision)
        if not decision.allowed:
            return _refusal(decision)
        if decision.handle is not None:
            g.sluicegate_lease = _RequestLease(self._limiter.keep(decision))
        return None

    def _after(self, response: Response) -> Response:
        decisions: Optional[RequestDecisions] = g.get("sluicegate")
        if decisions is not None:
            for name, value in decisions.headers():
                response.headers.setdefault(name, value)
        lease: Optional[_RequestLease] = g.get("sluicegate_lease")
        if lease is not None:
            lease.end_with(response)
        return response

    def _teardown(self, error: Any) -> None:
        token = g.pop("sluicegate_token", None)
        if token is not None:
            current_decisions.reset(token)
        lease: Optional[_RequestLease] = g.get("sluicegate_lease")
        if lease is not None and not lease.is_sent:
            # A later function failed or replaced the answer: the lease would wait for an answer that is never sent.
            lease.finish()


class _RequestLease:
    """The lease of a request. It ends when the answer has been sent, which for a stream is after the request context."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self.cost: Optional[CostLike] = None
        #: True if the server has an answer that ends the lease.
        self.is_sent = False

    def end_with(self, response: Response) -> None:
        """Ends the lease with the body of ``response``, if that is the answer that is sent."""
        get_app_iter = response.get_app_iter

        def get_watched(environ: Any) -> Iterable[bytes]:
            self.is_sent = True
            # Not `call_on_close`, which files (`send_file`) do not call.
            return ClosingIterator(get_app_iter(environ), self.finish)

        response.get_app_iter = get_watched  # type: ignore[method-assign]

    def finish(self) -> None:
        self._lease.finish(self.cost)


def settle_with(cost: CostLike) -> None:
    """Settles the admission of the current request with this cost when the answer has been sent."""
    lease: Optional[_RequestLease] = g.get("sluicegate_lease")
    if lease is not None:
        lease.cost = cost


def _refusal(decision: Decision) -> Response:
    return Response(decision.body, decision.status, dict(decision.headers), content_type="application/json")
