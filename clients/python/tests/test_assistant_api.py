"""The FastAPI twin of examples/assistant-api, with its own limits, and its Locust file."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Iterator

import httpx
import pytest
from conftest import private_redis, running, until

from sluicegate.testing import Service

EXAMPLE = Path(__file__).parents[3] / "examples/assistant-api"
QUESTION = {"question": " ".join(["word"] * 12)}
#: Users of the load test.
READERS = 100


@pytest.fixture(scope="module")
def limits() -> str:
    # Without `listen`, which the test sets itself.
    text = (EXAMPLE / "sluicegate.yaml").read_text()
    before, _, after = text.partition("listen:\n")
    return before + after.partition("\n\n")[2]


@pytest.fixture(params=["memory", "redis"])
def api(
    request: pytest.FixtureRequest, limits: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[httpx.Client, Service]]:
    """Runs a test once for each store, with the variables of the example."""
    # The load test needs a global limit that its users don't reach, however slow the machine is.
    env = {"STORE": request.param, "ORGANISATION_PER_MINUTE": "4", "GLOBAL_HOURLY_LIMIT": "100000"}
    with ExitStack() as stack:
        if request.param == "redis":
            host, _, port = stack.enter_context(private_redis()).partition(":")
            # The machine of a test may be slow.
            env |= {"REDIS_HOST": host, "REDIS_PORT": port, "REDIS_TIMEOUT": "10s", "REDIS_DEADLINE": "20s"}
        service = stack.enter_context(Service(limits, env=env))
        monkeypatch.setenv("LIMITER_URL", service.url)
        main = load()
        # The machine may be busy: wait longer for the limiter than the example does, and keep connections open for
        # longer than a user thinks.
        main.limiter._transport._timeout = 30
        yield stack.enter_context(running(main.app, timeout_keep_alive=60)), service


def load() -> Any:
    spec = importlib.util.spec_from_file_location("assistant_main", EXAMPLE / "fastapi/main.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["assistant_main"] = module
    spec.loader.exec_module(module)
    return module


Api = tuple[httpx.Client, Service]


def test_fifteen_questions_at_once_are_ten_answers_and_five_denials(api: Api) -> None:
    client, _ = api
    ask = lambda _: client.post("/ask", json=QUESTION, headers={"x-user-id": "ann"})  # noqa: E731
    with ThreadPoolExecutor(15) as threads:
        answers = list(threads.map(ask, range(15)))
    assert sorted(answer.status_code for answer in answers) == [200] * 10 + [429] * 5
    for answer in answers:
        assert {"x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "ratelimit"} <= set(answer.headers)
        if answer.status_code == 429:
            assert int(answer.headers["retry-after"]) > 0
            assert answer.json() == {"detail": "Rate limit exceeded: 10 requests per minute"}
        else:
            expected = {"api_cost_usd": 0.0002606, "rate_limited": False, "query_tokens": 12, "context_tokens": 856}
            assert expected.items() <= answer.json()["metadata"].items()
    usage = client.get("/users/ann/usage").json()
    assert usage["limits"]["minute"] == {"current": 10, "limit": 10, "remaining": 0}
    assert usage["cost"]["today"] == 0.002606


def test_an_organisation_has_a_limit_of_all_its_members(api: Api) -> None:
    client, _ = api
    statuses = []
    for number in range(5):
        headers = {"x-user-id": f"member-{number}", "x-org-id": "acme"}
        statuses.append(client.post("/ask", json=QUESTION, headers=headers).status_code)
    assert statuses == [200] * 4 + [429]
    assert client.post("/ask", json=QUESTION, headers={"x-user-id": "single"}).status_code == 200


def test_questions_are_answered_and_counted_while_the_limiter_is_down(api: Api) -> None:
    client, service = api
    ask = lambda: client.post("/ask", json=QUESTION, headers={"x-user-id": "bob"})  # noqa: E731
    assert ask().json()["metadata"]
    service.kill()
    answer = ask()
    assert (answer.status_code, answer.json()["metadata"]) == (200, {})
    assert client.get("/limiter").json()["failed_open"] == 1
    service.start()
    until(lambda: ask().headers.get("x-ratelimit-limit"))


def test_the_load_test_finds_only_correct_answers(api: Api) -> None:
    client, _ = api
    line = [sys.executable, "-m", "locust", "-f", str(EXAMPLE / "fastapi/locustfile.py"), "--headless", "--only-summary"]
    line += ["-u", str(READERS), "-r", "10", "-H", str(client.base_url), "--exit-code-on-error", "1"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            # A user who has asked twice has also thought in between. The last user starts after all others.
            for number in range(READERS, 0, -1):
                until(lambda: process.poll() is not None or asked(client, number) >= 2, 120)  # noqa: B023
            most = max(asked(client, number) for number in range(1, READERS + 1))
            still_running = process.poll() is None
        finally:
            process.terminate()
        printed, _ = process.communicate()
    assert still_running and process.returncode == 0, printed
    assert "POST" in printed
    assert most <= 10


def asked(client: httpx.Client, number: int) -> int:
    """Returns how many questions of a user of the load test were admitted in the last minute."""
    count: int = client.get(f"/users/reader-{number}/usage").json()["limits"]["minute"]["current"]
    return count
