"""HTTP/1.1 without input and output: encodes requests and parses responses, for both transports."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Dict, Optional
from urllib.parse import urlsplit

#: Environment variables for the address and the token of the service.
URL_VARIABLE = "SLUICEGATE_URL"
TOKEN_VARIABLE = "SLUICEGATE_TOKEN"  # noqa: S105
DEFAULT_URL = "http://127.0.0.1:8080"

_HEAD_MAX = 64 * 1024
_BODY_MAX = 16 * 1024 * 1024


class TransportError(Exception):
    """The exchange failed. ``unsent`` is True if the service certainly did not see the request."""

    def __init__(self, message: str, *, unsent: bool = False) -> None:
        super().__init__(message)
        self.unsent = unsent


@dataclass(frozen=True)
class Call:
    """One HTTP exchange. An idempotent call may be sent again after the connection broke."""

    method: str
    path: str
    body: bytes = b""
    idempotent: bool = True
    #: Seconds, if it may take longer than other calls.
    timeout: Optional[float] = None
    #: Operation that ends the admission if its caller is cancelled before the answer.
    unheard: Optional[str] = None


@dataclass(frozen=True)
class Response:
    """A complete HTTP response. The names of header fields are in lower case."""

    status: int
    headers: Dict[str, str]
    body: bytes
    keep_alive: bool


class Endpoint:
    """The address of a service, and the encoding of requests to it."""

    def __init__(self, url: Optional[str], token: Optional[str]) -> None:
        url = url or os.environ.get(URL_VARIABLE) or DEFAULT_URL
        token = token or os.environ.get(TOKEN_VARIABLE)
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"url {url!r}: write http:// or https:// and a host, such as {DEFAULT_URL}")
        self.tls = parts.scheme == "https"
        self.host = parts.hostname
        self.port = parts.port or (443 if self.tls else 80)
        self._path = parts.path.rstrip("/")
        fields = f"host: {parts.netloc.rpartition('@')[2]}\r\ncontent-type: application/json\r\n"
        if token:
            if not token.isascii() or not token.isprintable():
                raise ValueError("token: must consist of visible ASCII characters")
            fields += f"authorization: Bearer {token}\r\n"
        self._fields = fields

    def encode(self, call: Call) -> bytes:
        """Returns the bytes of a request."""
        head = f"{call.method} {self._path}{call.path} HTTP/1.1\r\n{self._fields}content-length: {len(call.body)}\r\n\r\n"
        return head.encode("latin-1") + call.body


class ResponseParser:
    """Collects the bytes of one response."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._status = 0
        self._headers: Dict[str, str] = {}
        self._has_head = False
        self._keep_alive = True

    @property
    def started(self) -> bool:
        """True if at least one byte of the response has arrived."""
        return self._has_head or bool(self._buffer)

    def feed(self, data: bytes) -> Optional[Response]:
        """Adds bytes. Returns the response when it is complete."""
        self._buffer += data
        while not self._has_head:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(self._buffer) > _HEAD_MAX:
                    raise TransportError("the header of the answer is too long: is the url that of the service?")
                return None
            self._parse_head(bytes(self._buffer[:end]))
            del self._buffer[: end + 4]
        if "chunked" in self._headers.get("transfer-encoding", "").lower():
            body = self._chunked()
        else:
            body = self._sized()
        if body is None:
            if len(self._buffer) > _BODY_MAX:
                raise TransportError("the answer is too long: is the url that of the service?")
            return None
        return Response(self._status, self._headers, body, self._keep_alive)

    def end(self) -> Optional[Response]:
        """Ends the response when the connection was closed: a body without a length ends here."""
        sized = "content-length" in self._headers or "transfer-encoding" in self._headers
        if not self._has_head or sized:
            return None
        return Response(self._status, self._headers, bytes(self._buffer), keep_alive=False)

    def _parse_head(self, head: bytes) -> None:
        lines = head.decode("latin-1").split("\r\n")
        words = lines[0].split(" ", 2)
        if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
            raise TransportError("the answer is not HTTP/1.1: is the url that of the service?")
        status = int(words[1])
        if status < 200:  # An interim response, such as 100 Continue: the final one follows.
            return
        headers: Dict[str, str] = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        connection = headers.get("connection", "").lower()
        self._status, self._headers, self._has_head = status, headers, True
        self._keep_alive = "close" not in connection and words[0] != "HTTP/1.0"

    def _sized(self) -> Optional[bytes]:
        if self._status in (204, 304):
            return b""
        length = self._headers.get("content-length")
        if length is None:
            return None
        if not length.isdigit():
            raise TransportError(f"content-length {length!r} of the answer is not a number")
        return bytes(self._buffer[: int(length)]) if len(self._buffer) >= int(length) else None

    def _chunked(self) -> Optional[bytes]:
        body, position = bytearray(), 0
        while True:
            end = self._buffer.find(b"\r\n", position)
            if end < 0:
                return None
            try:
                size = int(bytes(self._buffer[position:end]).partition(b";")[0], 16)
            except ValueError:
                raise TransportError("a chunk of the answer has no size") from None
            position = end + 2
            if size == 0:
                return bytes(body) if self._buffer.find(b"\r\n", position) >= 0 else None
            if len(self._buffer) < position + size + 2:
                return None
            body += self._buffer[position : position + size]
            position += size + 2
