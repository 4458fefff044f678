"""Client of Sluicegate, a rate limiter for requests, tokens, dollars and concurrency.

`Limiter` is for threads, `AsyncLimiter` for asyncio. `sluicegate.asgi`, `sluicegate.fastapi`, `sluicegate.django` and
`sluicegate.flask` plug them into web frameworks; `sluicegate.testing` starts a private service for tests.
"""

from ._async_limiter import AsyncLease, AsyncLimiter
from ._errors import ApiError, Denied, SluicegateError, Unavailable
from ._limiter import Lease, Limiter
from ._types import Cost, Decision, InlineLimit, Scope, Settlement, Stats, parse_limit

__version__ = "0.1.0"

__all__ = [
    "ApiError",
    "AsyncLease",
    "AsyncLimiter",
    "Cost",
    "Decision",
    "Denied",
    "InlineLimit",
    "Lease",
    "Limiter",
    "Scope",
    "Settlement",
    "SluicegateError",
    "Stats",
    "Unavailable",
    "parse_limit",
]
