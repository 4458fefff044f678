"""Client of Sluicegate, a rate limiter for requests, tokens, dollars and concurrency.

`Limiter` is for threads, `AsyncLimiter` for asyncio. `Queue` and `AsyncQueue` send, receive and process messages. `sluicegate.asgi`, `sluicegate.fastapi`, `sluicegate.django` and
`sluicegate.flask` plug them into web frameworks; `sluicegate.testing` starts a private service for tests.
"""

from ._async_limiter import AsyncLease, AsyncLimiter
from ._async_queue import AsyncQueue
from ._errors import ApiError, Denied, LeaseLost, SluicegateError, Unavailable
from ._limiter import Lease, Limiter
from ._network import network_of
from ._queue import Queue
from ._queue_flows import Defer, Depth, Message, Reject
from ._types import Cost, Decision, InlineLimit, Scope, Settlement, Stats, parse_limit

__version__ = "0.1.0"

__all__ = [
    "ApiError",
    "AsyncLease",
    "AsyncLimiter",
    "AsyncQueue",
    "Cost",
    "Decision",
    "Defer",
    "Denied",
    "Depth",
    "InlineLimit",
    "Lease",
    "LeaseLost",
    "Limiter",
    "Message",
    "Queue",
    "Reject",
    "Scope",
    "Settlement",
    "SluicegateError",
    "Stats",
    "Unavailable",
    "network_of",
    "parse_limit",
]
