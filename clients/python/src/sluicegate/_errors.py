"""Exceptions of the package. A denial is an answer; only the context managers and decorators raise it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from ._types import Decision


class SluicegateError(Exception):
    """Base class of all exceptions of this package."""


class Denied(SluicegateError):
    """Raised by leases and decorators if the limiter denies the request."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(decision.detail or decision.reason or "denied")
        self.decision = decision

    @property
    def retry_after(self) -> Optional[float]:
        """Seconds until the request would fit, or None if it never fits."""
        return self.decision.retry_after


class Unavailable(SluicegateError):
    """Raised if the service does not answer in time and ``on_unavailable`` is ``"raise"``."""


class ApiError(SluicegateError):
    """An error answer of the service, such as an invalid field or an expired handle."""

    def __init__(self, status: int, detail: str, field: Optional[str] = None, reason: Optional[str] = None) -> None:
        super().__init__(f"{status}: {detail}")
        self.status = status
        self.detail = detail
        self.field = field
        #: A word for programs, such as ``"NO_QUEUE"``; only errors of queues have one.
        self.reason = reason


class LeaseLost(ApiError):
    """The lease of a message has ended: another consumer has the message, or will get it."""
