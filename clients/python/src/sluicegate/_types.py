"""Values that callers pass in and get back: costs, inline limits, decisions and settlements."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple, Union

#: Dimensions of a request, such as ``{"userId": "u1"}``.
Dimensions = Mapping[str, str]
#: Dimensions of a request of a client. A value that the client did not send is None.
ClientDimensions = Mapping[str, Optional[str]]

_COST_FIELDS = (
    ("requests", "requests"),
    ("input_tokens", "inputTokens"),
    ("output_tokens", "outputTokens"),
    ("cached_input_tokens", "cachedInputTokens"),
    ("cache_write_tokens", "cacheWriteTokens"),
    ("reasoning_tokens", "reasoningTokens"),
    ("query_tokens", "queryTokens"),
    ("context_tokens", "contextTokens"),
    ("input_chars", "inputChars"),
    ("max_output_tokens", "maxOutputTokens"),
    ("n", "n"),
)


@dataclass(frozen=True)
class Cost:
    """The cost of a request: an estimate before the work, or the actual cost after it.

    ``usd`` is a decimal text or a ``Decimal``, because money is never a binary float.
    ``input_chars``, ``max_output_tokens`` and ``n`` are only valid in an estimate.
    """

    requests: Optional[int] = None
    input_tokens: Optional[int] = None
    output_tokens: Optional[int] = None
    usd: Union[str, Decimal, None] = None
    cached_input_tokens: Optional[int] = None
    cache_write_tokens: Optional[int] = None
    reasoning_tokens: Optional[int] = None
    query_tokens: Optional[int] = None
    context_tokens: Optional[int] = None
    input_chars: Optional[int] = None
    max_output_tokens: Optional[int] = None
    n: Optional[int] = None

    def __post_init__(self) -> None:
        if isinstance(self.usd, float):
            raise TypeError('usd: a float is not exact: write a text such as "0.0012" or a Decimal')

    def to_json(self) -> Dict[str, Any]:
        """Returns the JSON object of the HTTP API."""
        json: Dict[str, Any] = {}
        for name, key in _COST_FIELDS:
            value = getattr(self, name)
            if value is not None:
                json[key] = value
        if self.usd is not None:
            json["usd"] = format(self.usd, "f") if isinstance(self.usd, Decimal) else self.usd
        return json


#: A cost, or a number of requests.
CostLike = Union[Cost, int]


def cost_json(cost: CostLike) -> Dict[str, Any]:
    """Returns the JSON object of a cost; a plain number counts requests."""
    return {"requests": cost} if isinstance(cost, int) else cost.to_json()


_UNITS = {
    "s": "s", "sec": "s", "second": "s", "seconds": "s",
    "m": "min", "min": "min", "minute": "min", "minutes": "min",
    "h": "h", "hour": "h", "hours": "h",
}  # fmt: skip
_LIMIT = re.compile(
    r"\s*(?P<amount>[1-9]\d{0,5})(?P<unit> (requests|tokens|input_tokens|output_tokens))?"
    r"\s*(/|\bper\b)\s*(?P<count>[1-9]\d?)?\s*(?P<span>[a-z]+)\s*",
    re.IGNORECASE,
)


def parse_limit(text: str) -> str:
    """Returns a limit in the form of the service: ``"100/minute"`` and ``"100 per minute"`` are ``"100/min"``."""
    if not isinstance(text, str):
        raise TypeError(f'limit {text!r}: must be a text with an amount and a window, such as "{text}/minute"')
    match = _LIMIT.fullmatch(text)
    span = _UNITS.get(match["span"].lower()) if match else None
    if match is None or span is None:
        raise ValueError(
            f'limit {text!r}: write an amount and a window of seconds, minutes or hours, such as "100/minute"; '
            "longer windows belong into the configuration of the service"
        )
    return f"{match['amount']}{match['unit'] or ''}/{match['count'] or ''}{span}"


@dataclass(frozen=True)
class InlineLimit:
    """A limit that a request brings along, checked in addition to the rules of the service."""

    name: str
    key: str
    limit: str

    def to_json(self) -> Dict[str, str]:
        """Returns the JSON object of the HTTP API."""
        return {"name": self.name, "key": self.key, "limit": parse_limit(self.limit)}


#: Seconds, a ``timedelta``, or a text such as ``"2min"``.
Hold = Union[int, float, timedelta, str]


#: Hold of an estimate that a context manager or a middleware settles, unless another one is given.
HOLD_SECONDS_DEFAULT = 300


def hold_of(cost: Optional[CostLike], hold: Optional[Hold]) -> Optional[Hold]:
    """Returns the hold of an admission that is settled or released at its end."""
    # Without a hold, the service takes an estimate for the final cost.
    return HOLD_SECONDS_DEFAULT if hold is None and isinstance(cost, Cost) else hold


def hold_text(hold: Hold) -> str:
    """Returns a hold in the form of the service, rounded up to whole seconds."""
    if isinstance(hold, str):
        return hold
    seconds = math.ceil(hold.total_seconds() if isinstance(hold, timedelta) else hold)
    if seconds < 1:
        raise ValueError(f"hold {hold!r}: must be at least one second")
    return f"{seconds}s" if seconds <= 9999 else f"{math.ceil(seconds / 60)}min"


def parse_time(text: str) -> datetime:
    """Returns the time of an answer. Fractions may have fewer than six digits, which Python 3.9 does not read."""
    whole, _, fraction = text.rstrip("Z").partition(".")
    return datetime.fromisoformat(f"{whole}.{fraction[:6]:0<6}+00:00")


@dataclass(frozen=True)
class Scope:
    """One limit that was checked, with its usage. ``shadow`` limits are counted but never deny."""

    name: str
    window: str
    limit: float
    current: float
    remaining: float
    reset_at: datetime
    shadow: bool = False

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> Scope:
        """Reads a scope of the HTTP API."""
        return cls(
            name=json["name"],
            window=json["window"],
            limit=json["limit"],
            current=json["current"],
            remaining=json["remaining"],
            reset_at=parse_time(json["resetAt"]),
            shadow=json.get("shadow", False),
        )


@dataclass(frozen=True)
class Decision:
    """The answer to a request. It is true if the request may go.

    ``status``, ``headers`` and ``body`` are an HTTP answer that an application can pass on to its own client.
    ``source`` is ``"service"``, or ``"fail_open"`` or ``"fail_closed"`` if the service did not answer.
    """

    allowed: bool
    status: int
    source: str = "service"
    id: Optional[str] = None
    handle: Optional[str] = None
    reason: Optional[str] = None
    scope_hit: Optional[str] = None
    detail: Optional[str] = None
    #: Seconds until the request would fit; None if it was admitted or never fits.
    retry_after: Optional[float] = None
    #: Seconds until the lease or the reservation ends, counted from the decision.
    lease_seconds: Optional[float] = None
    replayed: bool = False
    #: Rate limit header fields, with names in lower case.
    headers: Tuple[Tuple[str, str], ...] = ()
    body: bytes = b""
    json: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __bool__(self) -> bool:
        return self.allowed

    @property
    def scopes(self) -> Tuple[Scope, ...]:
        """All limits that were checked."""
        return tuple(Scope.from_json(scope) for scope in self.json.get("scopes", ()))

    @property
    def max_output_tokens(self) -> Optional[int]:
        """Of a denial: the largest output cap that would be admitted now."""
        return self.json.get("maxOutputTokens")

    @property
    def failed(self) -> bool:
        """True if the service did not answer and ``on_unavailable`` decided."""
        return self.source != "service"


@dataclass(frozen=True)
class Settlement:
    """The answer to a settlement. ``metadata`` has the fields that an API can pass on to its own client.

    ``recorded`` is False if the admission had no handle or the service did not answer: the reservation then expires.
    """

    recorded: bool
    replayed: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Stats:
    """Counters of a limiter since its creation."""

    allowed: int = 0
    denied: int = 0
    #: Requests that were admitted because the service did not answer.
    failed_open: int = 0
    #: Requests that were denied because the service did not answer.
    failed_closed: int = 0
    #: Settlements, releases and cancellations that the service did not record.
    unsettled: int = 0


#: Inline limits of a request.
Limits = Sequence[InlineLimit]
