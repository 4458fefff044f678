"""A Django project in one file. It serves on a free port, which it prints: `django_project.py wsgi|asgi`."""

from __future__ import annotations

import asyncio
import io
import os
import sys
import tempfile
import time
from typing import Any

from django.conf import settings
from django.http import FileResponse, HttpResponse, StreamingHttpResponse
from django.urls import path

from sluicegate import Cost, Limiter
from sluicegate.django import settle_with

GO = os.path.join(tempfile.mkdtemp(), "go")
IS_ASGI = sys.argv[1] == "asgi"


def dimensions(request: Any) -> Any:
    return request.GET.dict() or None


def cost(request: Any) -> Any:
    return Cost(usd="1.00") if "userId" in request.GET else 1


def settled(request: Any) -> HttpResponse:
    settle_with(request, Cost(usd="0.50"))
    return HttpResponse("ok")


def broken(request: Any) -> HttpResponse:
    raise ZeroDivisionError


def stream(request: Any) -> StreamingHttpResponse:
    def parts() -> Any:
        yield "first"
        while not os.path.exists(GO):
            time.sleep(0.01)
        yield "last"

    async def async_parts() -> Any:
        yield "first"
        while not os.path.exists(GO):
            await asyncio.sleep(0.01)
        yield "last"

    return StreamingHttpResponse(async_parts() if IS_ASGI else parts())


def slots(request: Any) -> bytes:
    with Limiter(timeout=30) as limiter:
        return str(limiter.usage(request.GET.dict())[0].current).encode()


def other_stream(request: Any) -> StreamingHttpResponse:
    """Streams the number of slots in use, by the kind of generator that the server has to convert."""

    def parts() -> Any:
        yield slots(request)

    async def async_parts() -> Any:
        yield slots(request)

    return StreamingHttpResponse(parts() if IS_ASGI else async_parts())


def download(request: Any) -> FileResponse:
    """Sends a file that contains the number of slots in use when it is read."""

    class File(io.BytesIO):
        asked = False

        def read(self, size: Any = -1) -> bytes:
            if self.asked:
                return b""
            self.asked = True
            return slots(request)

    return FileResponse(File(b"0"))  # Its length is that of the number.


def discards(get_response: Any) -> Any:
    """Middleware that replaces a streamed answer, which is then closed without being read, or only forgotten."""

    def handle(request: Any) -> Any:
        response = get_response(request)
        if "discard" in request.headers:
            if request.headers["discard"] == "close":
                response.close()
            return HttpResponse("discarded")
        return response

    return handle


urlpatterns = [
    path("", lambda request: HttpResponse("ok")),
    path("health", lambda request: HttpResponse("ok")),
    path("file", lambda request: HttpResponse(GO)),
    path("settled", settled),
    path("broken", broken),
    path("stream", stream),
    path("other-stream", other_stream),
    path("download", download),
]
settings.configure(
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["*"],
    SECRET_KEY="test",
    LOGGING_CONFIG=None,
    MIDDLEWARE=["__main__.discards", "sluicegate.django.RateLimitMiddleware"],
    SLUICEGATE={
        "DIMENSIONS": "__main__.dimensions",
        "COST": "__main__.cost",
        "SKIP_WHEN": lambda request: request.path == "/health",
    },
)

if IS_ASGI:
    import socket

    import uvicorn
    from django.core.asgi import get_asgi_application

    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(get_asgi_application(), log_level="error", lifespan="off")
    uvicorn.Server(config).run([listener])
else:
    from django.core.wsgi import get_wsgi_application
    from werkzeug.serving import make_server

    server = make_server("127.0.0.1", 0, get_wsgi_application(), threaded=True)
    print(server.port, flush=True)
    server.serve_forever()
