"""Real web frameworks on real sockets: FastAPI and Starlette on uvicorn, Flask, Django under WSGI and ASGI."""

import asyncio
import io
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, AsyncIterator, Iterator, Optional

import httpx
import jwt
import pytest
from conftest import running, until
from fastapi import BackgroundTasks, Depends, FastAPI, Header, HTTPException, Request, WebSocket
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import StreamingResponse
from flask import Flask, send_file, stream_with_context
from flask.sessions import SecureCookieSessionInterface
from werkzeug.serving import make_server

from sluicegate import AsyncLimiter, Cost, InlineLimit, Limiter
from sluicegate import flask as sluicegate_flask
from sluicegate.asgi import Connection, RateLimitMiddleware, request_limits
from sluicegate.fastapi import install, rate_limit
from sluicegate.testing import Service

FIELDS = {"x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "ratelimit", "ratelimit-policy"}


def header_dimensions(x_user: Annotated[str, Header()]) -> dict[str, str]:
    return {"orgId": x_user}


def slot_dimensions(x_slot: Annotated[str, Header()]) -> dict[str, str]:
    return {"slotId": x_slot}


@pytest.fixture
def slots(memory_service: Service) -> Iterator[Any]:
    """Returns the number of slots in use."""
    with Limiter(memory_service.url, timeout=30) as limiter:
        yield lambda name: limiter.usage({"slotId": name})[0].current


def test_fastapi_limits_an_endpoint_with_the_headers_and_the_body_of_a_denial(service: Service, name: str) -> None:
    limiter = AsyncLimiter(service.url, timeout=30)
    app = FastAPI()
    install(app, limiter)

    @app.get("/", dependencies=[Depends(rate_limit(limiter, header_dimensions))])
    async def index() -> str:
        return "ok"

    with running(app) as client:
        answers = [client.get("/", headers={"x-user": name}) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert [answer.headers["x-ratelimit-remaining"] for answer in answers] == ["2", "1", "0", "0"]
    assert all(set(answer.headers) >= FIELDS for answer in answers)
    assert 0 < int(answers[3].headers["retry-after"]) <= 60
    assert answers[3].json() == {"detail": "Rate limit exceeded: 3 requests per minute"}


def test_fifteen_concurrent_calls_of_one_user_are_ten_answers_and_five_denials(service: Service, name: str) -> None:
    limiter = AsyncLimiter(service.url, timeout=30)
    app = RateLimitMiddleware(FastAPI(), limiter, lambda connection: {"userId": connection.header("x-user") or ""})
    with running(app) as client, ThreadPoolExecutor(15) as threads:
        answers = list(threads.map(lambda _: client.get("/", headers={"x-user": name}), range(15)))
    # There is no route: the application itself answers 404.
    assert sorted(answer.status_code for answer in answers) == [404] * 10 + [429] * 5
    for answer in answers:
        if answer.status_code == 429:
            assert int(answer.headers["retry-after"]) > 0
            assert answer.json()["detail"] == "Rate limit exceeded: 10 requests per minute"
            assert answer.json()["reason"] == "HIT_USER_LIMIT"


def test_the_headers_are_there_also_if_a_later_dependency_or_the_endpoint_raises(
    memory_service: Service, name: str
) -> None:
    limiter = AsyncLimiter(memory_service.url, timeout=30)

    def forbidden() -> None:
        raise HTTPException(403)

    def fails() -> None:
        raise ZeroDivisionError

    app = FastAPI()
    install(app, limiter)
    limited = Depends(rate_limit(limiter, header_dimensions))

    @app.get("/forbidden", dependencies=[limited, Depends(forbidden)])
    async def raises_http_exception() -> None: ...

    @app.get("/fails", dependencies=[limited, Depends(fails)])
    async def raises_in_dependency() -> None: ...

    @app.get("/broken", dependencies=[limited])
    async def raises_in_endpoint() -> None:
        raise ZeroDivisionError

    with running(app, log_config=None) as client:
        for path, status, remaining in (("forbidden", 403, "2"), ("fails", 500, "1"), ("broken", 500, "0")):
            # uvicorn closes a connection after an exception.
            answer = client.get(f"/{path}", headers={"x-user": name, "connection": "close"})
            assert (answer.status_code, answer.headers.get("x-ratelimit-remaining")) == (status, remaining), path
            assert answer.headers.get_list("x-ratelimit-remaining") == [remaining]


def test_a_denial_of_an_installed_middleware_passes_the_middleware_that_is_added_later(
    memory_service: Service, name: str
) -> None:
    limiter = AsyncLimiter(memory_service.url, timeout=30)
    app = FastAPI()
    install(app, limiter, dimensions=lambda connection: {"orgId": name}, cost=4)
    app.add_middleware(CORSMiddleware, allow_origins=["*"])
    with running(app) as client:
        answer = client.get("/", headers={"origin": "https://example.com"})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (429, "*")


def test_a_slot_is_freed_before_the_background_tasks_of_the_answer(
    memory_service: Service, name: str, slots: Any
) -> None:
    limiter = AsyncLimiter(memory_service.url, timeout=30)
    app = FastAPI()
    install(app, limiter)
    began, go = threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        go.wait()

    @app.get("/", dependencies=[Depends(rate_limit(limiter, slot_dimensions))])
    async def index(tasks: BackgroundTasks) -> None:
        tasks.add_task(work)

    with running(app) as client:
        try:
            assert client.get("/", headers={"x-slot": name}).status_code == 200
            assert began.wait(30)
            until(lambda: slots(name) == 0)
        finally:
            go.set()


REQUIRED = "limits: [{name: user, rules: [{name: USER, per: [userId], limit: 5/min}]}]"


def is_a_clear_400(answer: httpx.Response) -> None:
    assert answer.status_code == 400
    assert "userId" in answer.json()["detail"], answer.text


@pytest.mark.parametrize("kind", ["middleware", "dependency", "decorator", "flask"])
def test_an_invalid_value_of_a_client_is_answered_with_400(kind: str) -> None:
    # A header field may be too long, empty or missing.
    invalid: list[dict[str, str]] = [{"x-user": "x" * 257}, {"x-user": ""}, {}]
    with Service(REQUIRED) as service:
        if kind == "flask":
            flask_app = Flask(__name__)
            limiter = Limiter(service.url, timeout=30)
            sluicegate_flask.RateLimits(flask_app, limiter, lambda request: {"userId": request.headers.get("x-user")})
            flask_app.get("/")(lambda: "ok")
            flask_client = flask_app.test_client()
            for headers in invalid:
                answer = flask_client.get("/", headers=headers)
                is_a_clear_400(httpx.Response(answer.status_code, content=answer.data))
            assert flask_client.get("/", headers={"x-user": "ann"}).status_code == 200
            limiter.close()
            return
        asked = AsyncLimiter(service.url, timeout=30)

        def user(x_user: Annotated[Optional[str], Header()] = None) -> dict[str, Optional[str]]:
            return {"userId": x_user}

        app = FastAPI()
        if kind == "middleware":
            install(app, asked, dimensions=lambda connection: {"userId": connection.header("x-user")})
        else:
            install(app, asked)
        limited = [Depends(rate_limit(asked, user))] if kind == "dependency" else []

        @app.get("/", dependencies=limited)
        async def index(x_user: Annotated[str, Header()] = "ann") -> str:
            return await decorated(x_user) if kind == "decorator" else "ok"

        @asked.limit(lambda name: {"userId": name})
        async def decorated(name: str) -> str:
            return name

        with running(app) as client:
            for headers in invalid[:2] if kind == "decorator" else invalid:
                is_a_clear_400(client.get("/", headers=headers))
            assert client.get("/", headers={"x-user": "ann"}).status_code == 200


@pytest.mark.parametrize(("policy", "status"), [("open", 200), ("closed", 503)])
def test_a_wrong_token_of_the_limiter_is_not_shown_to_clients(
    policy: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Exception] = []
    note = lambda error, by: seen.append(error)  # noqa: E731
    with Service("auth: {tokens: {app: '0123456789abcdef'}}\n" + REQUIRED) as service:
        limiter = AsyncLimiter(service.url, token="wrong", timeout=30, on_unavailable=policy, on_failure=note)
        app = FastAPI()
        install(app, limiter, dimensions=lambda connection: {"userId": "ann"})
        app.get("/")(lambda: "ok")
        with running(app) as client:
            assert [client.get("/").status_code for _ in range(3)] == [status] * 3
    assert getattr(limiter.stats, f"failed_{policy}") == 3
    assert [getattr(error, "status", None) for error in seen] == [401] * 3
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 1 and errors[0].startswith("the service refuses this limiter: 401"), errors


@pytest.mark.parametrize("failure", ["none", "raise", "replace", "session", "file"])
def test_flask_ends_the_admission_also_if_a_later_function_fails(
    memory_service: Service, name: str, slots: Any, failure: str
) -> None:
    limiter = Limiter(memory_service.url, timeout=30)
    app = Flask(__name__)

    class FailingSessions(SecureCookieSessionInterface):
        def save_session(self, *_: Any) -> None:
            if failure == "session":
                raise ZeroDivisionError

    app.secret_key = "test"
    app.session_interface = FailingSessions()

    @app.after_request
    def later(response: Any) -> Any:  # Functions run in reverse order: this one after ours.
        if failure == "raise":
            raise ZeroDivisionError
        return app.response_class("replaced") if failure == "replace" else response

    sluicegate_flask.RateLimits(app, limiter, lambda request: {"slotId": name})

    @app.get("/")
    def index() -> Any:
        return send_file(io.BytesIO(b"data"), mimetype="text/plain") if failure == "file" else "ok"

    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        answer = httpx.get(f"http://127.0.0.1:{server.port}/", timeout=30)
        expected = {"raise": (500, ""), "session": (500, ""), "replace": (200, "replaced"), "file": (200, "data")}
        status, text = expected.get(failure, (200, "ok"))
        assert answer.status_code == status
        assert text in answer.text
        until(lambda: slots(name) == 0)
    finally:
        server.shutdown()
        thread.join()
        limiter.close()


def test_the_limit_depends_on_a_jwt(memory_service: Service, name: str) -> None:
    secret = "0123456789abcdef0123456789abcdef"
    limiter = AsyncLimiter(memory_service.url, timeout=30)

    def claims(authorization: Annotated[str, Header()]) -> dict[str, Any]:
        decoded: dict[str, Any] = jwt.decode(authorization.partition(" ")[2], secret, ["HS256"])
        return decoded

    def dimensions(claims: Annotated[dict[str, Any], Depends(claims)]) -> dict[str, str]:
        return {"userId": claims["sub"]}

    def limits(claims: Annotated[dict[str, Any], Depends(claims)]) -> list[InlineLimit]:
        return [InlineLimit("PLAN", claims["sub"], claims["limit"])]

    app = FastAPI(dependencies=[Depends(rate_limit(limiter, dimensions, limits=limits))])

    @app.get("/")
    async def index() -> None: ...

    def statuses(limit: str) -> list[int]:
        token = jwt.encode({"sub": f"{name}-{limit}", "limit": limit}, secret)
        headers = {"authorization": f"Bearer {token}"}
        return [client.get("/", headers=headers).status_code for _ in range(3)]

    with running(app) as client:
        assert statuses("1/minute") == [200, 429, 429]
        assert statuses("2/minute") == [200, 200, 429]


def test_requests_can_be_skipped_and_cost_more(memory_service: Service, name: str) -> None:
    limiter = AsyncLimiter(memory_service.url, timeout=30)

    def is_admin(x_admin: Annotated[str, Header()] = "") -> bool:
        return bool(x_admin)

    def cost(x_cost: Annotated[int, Header()] = 1) -> int:
        return x_cost

    app = FastAPI()
    limited = rate_limit(limiter, header_dimensions, skip_when=is_admin, cost=cost)

    @app.get("/", dependencies=[Depends(limited)])
    async def index() -> None: ...

    with running(app) as client:
        status = lambda **headers: client.get("/", headers={"x-user": name, **headers}).status_code  # noqa: E731
        assert status(**{"x-cost": "3"}) == 200
        assert status() == 429
        assert status(**{"x-admin": "yes"}) == 200


def test_a_decorated_endpoint_needs_no_request_argument(memory_service: Service, name: str) -> None:
    limiter = AsyncLimiter(memory_service.url, timeout=30)
    app = FastAPI()
    install(app, limiter)

    @app.get("/{org}")
    @limiter.limit(lambda org: {"orgId": org})
    async def index(org: str, page: int = 1) -> int:
        return page

    with running(app) as client:
        answers = [client.get(f"/{name}?page=2") for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert (answers[0].json(), answers[0].headers["x-ratelimit-remaining"]) == (2, "2")
    assert answers[3].json()["reason"] == "HIT_ORG_LIMIT"
    assert answers[3].headers["retry-after"]


def test_a_slot_is_held_until_the_stream_ends(memory_service: Service, name: str, slots: Any) -> None:
    limiter = AsyncLimiter(memory_service.url, timeout=30)
    app = FastAPI()
    install(app, limiter)
    go = threading.Event()

    @app.get("/", dependencies=[Depends(rate_limit(limiter, slot_dimensions))])
    async def stream() -> StreamingResponse:
        async def parts() -> AsyncIterator[str]:
            yield "first"
            while not go.is_set():
                await asyncio.sleep(0.01)
            yield "last"

        return StreamingResponse(parts())

    with running(app) as client:
        with client.stream("GET", "/", headers={"x-slot": name}) as answer:
            parts = answer.iter_text()
            assert next(parts) == "first"
            assert slots(name) == 1
            go.set()
            assert "".join(parts) == "last"
        until(lambda: slots(name) == 0)


def test_a_slot_is_given_back_if_the_client_disconnects(memory_service: Service, name: str, slots: Any) -> None:
    limiter = AsyncLimiter(memory_service.url, timeout=30)
    app = FastAPI()
    install(app, limiter)

    @app.get("/", dependencies=[Depends(rate_limit(limiter, slot_dimensions))])
    async def endless() -> StreamingResponse:
        async def parts() -> AsyncIterator[str]:
            while True:
                yield "part"
                await asyncio.sleep(0.01)

        return StreamingResponse(parts())

    with running(app) as client:
        with client.stream("GET", "/", headers={"x-slot": name}) as answer:
            parts_of_answer = answer.iter_text()  # If it were dropped, httpx would disconnect.
            next(parts_of_answer)
            assert slots(name) == 1
        until(lambda: slots(name) == 0)


def test_a_cost_is_settled_when_it_is_known(memory_service: Service, name: str) -> None:
    limiter = AsyncLimiter(memory_service.url, timeout=30)
    app = FastAPI()
    estimate = Cost(usd="1.00")
    app.add_middleware(
        RateLimitMiddleware,
        limiter=limiter,
        dimensions=lambda connection: {"userId": connection.header("x-user") or ""},
        cost=estimate,
        hold=60,
        settle_cost=lambda status, headers: Cost(usd=headers["x-cost"]) if "x-cost" in headers else None,
    )

    @app.get("/now")
    async def now(request: Request) -> Any:
        return await request_limits(request).settle(Cost(query_tokens=12, context_tokens=856, output_tokens=145))

    @app.get("/later")
    async def later(request: Request) -> None:
        request_limits(request).settle_with(Cost(usd="0.50"))

    @app.get("/header")
    async def header() -> Any:
        from fastapi import Response

        return Response(headers={"x-cost": "0.25"})

    with running(app) as client, Limiter(memory_service.url, timeout=30) as asked:
        today = lambda user: asked.get_user_stats(user)["cost"]["today"]  # noqa: E731
        metadata = client.get("/now", headers={"x-user": f"{name}-now"}).json()
        assert metadata["api_cost_usd"] == 0.0002606
        assert today(f"{name}-now") == 0.0002606
        for path, cost in (("later", 0.5), ("header", 0.25)):
            client.get(f"/{path}", headers={"x-user": f"{name}-{path}"})
            until(lambda: today(f"{name}-{path}") == cost)


def test_websockets_are_limited_and_hold_their_slot(memory_service: Service, name: str, slots: Any) -> None:
    from websockets.exceptions import InvalidStatus
    from websockets.sync.client import connect

    limiter = AsyncLimiter(memory_service.url, timeout=30)
    inner = FastAPI()

    @inner.websocket("/")
    async def echo(socket: WebSocket) -> None:
        await socket.accept()
        async for message in socket.iter_text():
            await socket.send_text(message)

    @inner.websocket("/dependency")
    async def by_dependency(socket: WebSocket, decision: Annotated[Any, Depends(rate_limit(limiter, by_path))]) -> None:
        await echo(socket)

    app = RateLimitMiddleware(inner, limiter, by_query)
    with running(app) as client:
        address = f"ws://{client.base_url.netloc.decode()}"
        for path in (f"/?middleware={name}-m", f"/dependency?slot={name}-d"):
            slot = path.partition("=")[2]
            with connect(address + path) as first, connect(address + path):
                first.send("hello")
                assert first.recv() == "hello"
                assert slots(slot) == 2
                with pytest.raises(InvalidStatus) as refused:
                    connect(address + path)
                assert refused.value.response.status_code == 429
                assert refused.value.response.headers["retry-after"]
                assert b"HIT_SLOTS_LIMIT" in (refused.value.response.body or b"")
            until(lambda: slots(slot) == 0)
        with connect(f"{address}/?brief={name}"):
            held_longer_than_its_lease(memory_service, name)


def by_path(slot: str) -> dict[str, str]:
    return {"slotId": slot}


def by_query(connection: Connection) -> Any:
    name, _, value = connection.scope["query_string"].decode().partition("=")
    if name == "brief":
        return {"briefId": value}
    return {"slotId": value} if name == "middleware" else None


@pytest.mark.parametrize(("policy", "status"), [("open", 200), ("closed", 503)])
def test_the_application_behaves_as_stated_while_the_limiter_is_down(policy: str, status: int) -> None:
    limiter = AsyncLimiter("http://127.0.0.1:1", on_unavailable=policy)
    app = FastAPI()
    install(app, limiter, dimensions=lambda connection: {"userId": "u"})

    @app.get("/")
    async def index() -> None: ...

    with running(app) as client:
        answer = client.get("/")
    assert answer.status_code == status
    if policy == "closed":
        assert answer.json()["reason"] == "LIMITER_UNAVAILABLE"
        assert answer.headers["retry-after"] == "1"


def test_options_without_dimensions_are_a_mistake() -> None:
    with pytest.raises(TypeError, match="dimensions: is required with cost"):
        RateLimitMiddleware(FastAPI(), AsyncLimiter("http://127.0.0.1:1"), cost=2)


def test_flask_is_limited_and_settles_when_the_body_is_sent(memory_service: Service, name: str, slots: Any) -> None:
    limiter = Limiter(memory_service.url, timeout=30)
    app = Flask(__name__)
    sluicegate_flask.RateLimits(
        app,
        limiter,
        lambda request: dict(request.args) or None,
        cost=lambda request: Cost(usd="1.00") if "userId" in request.args else 1,
        hold=60,
        skip_when=lambda request: request.path == "/health",
    )

    @app.get("/")
    def index() -> str:
        sluicegate_flask.settle_with(Cost(usd="0.50"))
        return "ok"

    @app.get("/health")
    def health() -> str:
        return "ok"

    @app.get("/broken")
    def broken() -> str:
        raise ZeroDivisionError

    @app.get("/stream")
    def stream() -> Any:
        def parts() -> Iterator[str]:
            held_longer_than_its_lease(memory_service, name)
            yield str(slots(name))

        return stream_with_context(parts()), 200

    @app.get("/decorated/<org>")
    @limiter.limit(lambda org: {"orgId": org})
    def decorated(org: str) -> str:
        return org

    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=30) as client:
            answers = [client.get("/", params={"orgId": name}) for _ in range(4)]
            assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
            assert all(set(answer.headers) >= FIELDS for answer in answers)
            assert answers[3].json()["detail"] == "Rate limit exceeded: 3 requests per minute"
            assert client.get("/health", params={"orgId": name}).status_code == 200
            broken = client.get("/broken", params={"orgId": f"{name}-broken"})
            assert (broken.status_code, broken.headers["x-ratelimit-remaining"]) == (500, "2")
            client.get("/", params={"userId": name})
            until(lambda: limiter.get_user_stats(name)["cost"]["today"] == 0.5)
            assert client.get("/stream", params={"slotId": name, "briefId": name}).text == "1"
            until(lambda: slots(name) == 0)
            answers = [client.get(f"/decorated/{name}-decorated") for _ in range(4)]
            assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
            assert answers[0].headers["x-ratelimit-remaining"] == "2"
    finally:
        server.shutdown()
        thread.join()
        limiter.close()


@pytest.mark.parametrize("kind", ["wsgi", "asgi"])
def test_django_is_limited(memory_service: Service, name: str, slots: Any, kind: str) -> None:
    # A process of its own: Django has one configuration per process.
    script = Path(__file__).with_name("django_project.py")
    env = {**os.environ, "SLUICEGATE_URL": memory_service.url}
    with subprocess.Popen([sys.executable, str(script), kind], stdout=subprocess.PIPE, text=True, env=env) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
                answers = [client.get("/", params={"orgId": name}) for _ in range(4)]
                assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
                assert all(set(answer.headers) >= FIELDS for answer in answers)
                assert answers[3].json()["detail"] == "Rate limit exceeded: 3 requests per minute"
                assert client.get("/health", params={"orgId": name}).status_code == 200
                broken = client.get("/broken", params={"orgId": f"{name}-broken"})
                assert (broken.status_code, broken.headers["x-ratelimit-remaining"]) == (500, "2")
                with Limiter(memory_service.url, timeout=30) as limiter:
                    client.get("/settled", params={"userId": name})
                    until(lambda: limiter.get_user_stats(name)["cost"]["today"] == 0.5)
                for way in ("close", "forget"):
                    discarded = client.get("/stream", params={"slotId": name}, headers={"discard": way})
                    assert discarded.text == "discarded"
                    until(lambda: slots(name) == 0)
                for path in ("other-stream", "download"):
                    answer = client.get(f"/{path}", params={"slotId": name})
                    assert (answer.status_code, answer.text) == (200, "1"), path
                    until(lambda: slots(name) == 0)
                is_a_clear_400(client.get("/", params={"userId": "x" * 257}))
                with client.stream("GET", "/stream", params={"slotId": name, "briefId": name}) as answer:
                    parts = answer.iter_text()
                    next(parts)
                    assert slots(name) == 1
                    held_longer_than_its_lease(memory_service, name)
                    Path(process_file(client)).touch()
                    assert "".join(parts) == "last"
                until(lambda: slots(name) == 0)
        finally:
            process.kill()


def held_longer_than_its_lease(service: Service, name: str) -> None:
    """Checks that a slot whose lease is one second is renewed."""
    began = time.monotonic()
    until(lambda: time.monotonic() - began > 1.5)
    with Limiter(service.url, timeout=30) as limiter:
        assert limiter.usage({"briefId": name})[0].current == 1


def process_file(client: httpx.Client) -> str:
    return client.get("/file").text
