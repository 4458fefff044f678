"""The decisions of the HTTP request that is being handled, for the header fields of its answer."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Iterable, List, Optional, Tuple

from ._types import Decision

_JOINED = ("ratelimit", "ratelimit-policy")


class RequestDecisions:
    """All decisions of one HTTP request."""

    def __init__(self) -> None:
        self.decisions: List[Decision] = []

    def headers(self) -> List[Tuple[str, str]]:
        """Returns the rate limit header fields of all decisions."""
        return merged_headers(self.decisions)


current_decisions: ContextVar[Optional[RequestDecisions]] = ContextVar("sluicegate_decisions", default=None)


def record(decision: Decision) -> None:
    """Adds a decision to the HTTP request that is being handled, if a middleware handles one."""
    request = current_decisions.get()
    if request is not None:
        request.decisions.append(decision)


def merged_headers(decisions: Iterable[Decision]) -> List[Tuple[str, str]]:
    """Combines the header fields of several decisions.

    ``RateLimit`` and ``RateLimit-Policy`` list the limits of all of them. The other fields are those of a denial, or
    of the decision with the least left.
    """
    known = [(decision, dict(decision.headers)) for decision in decisions if decision.headers]
    if not known:
        return []

    def tightness(entry: Tuple[Decision, dict[str, str]]) -> Tuple[bool, int]:
        remaining = entry[1].get("x-ratelimit-remaining", "")
        return entry[0].allowed, int(remaining) if remaining.isdigit() else 0

    fields = dict(min(known, key=tightness)[1])
    for name in _JOINED:
        values = [headers[name] for _, headers in known if name in headers]
        if values:
            fields[name] = ", ".join(dict.fromkeys(values))
    return list(fields.items())
