"""Every operation of both limiters, against a real service on memory and on Redis."""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any, Callable

import pytest
import trustme
import uvloop
from conftest import Proxy, on_redis, private_redis, until

from sluicegate import (
    ApiError,
    AsyncLimiter,
    Cost,
    Decision,
    Denied,
    InlineLimit,
    Limiter,
    Unavailable,
    network_of,
    parse_limit,
)
from sluicegate.asgi import Connection, RateLimitMiddleware
from sluicegate.testing import Service

Make = Callable[..., Any]


def test_the_limit_denies_the_next_request_and_says_when_it_fits(service: Service, make: Make, name: str) -> None:
    limiter = make(service.url)
    admitted = [limiter.acquire({"userId": name}) for _ in range(10)]
    assert all(admitted)
    denied = limiter.acquire({"userId": name})
    assert not denied
    assert (denied.status, denied.reason, denied.scope_hit) == (429, "HIT_USER_LIMIT", "USER")
    assert denied.detail == "Rate limit exceeded: 10 requests per minute"
    assert 0 < denied.retry_after <= 60
    assert dict(denied.headers)["x-ratelimit-remaining"] == "0"
    assert (limiter.stats.allowed, limiter.stats.denied) == (10, 1)


def test_a_check_uses_no_capacity(service: Service, make: Make, name: str) -> None:
    limiter = make(service.url)
    for _ in range(15):
        decision = limiter.check({"userId": name})
        assert decision.allowed
    assert {scope.name: scope.current for scope in limiter.usage({"userId": name})}["USER"] == 0


def test_a_repeated_id_is_charged_once(service: Service, make: Make, name: str) -> None:
    limiter = make(service.url)
    assert not limiter.acquire({"orgId": name}, id=name).replayed
    assert limiter.acquire({"orgId": name}, id=name).replayed
    assert limiter.usage({"orgId": name})[0].current == 1


def test_an_estimate_is_settled_with_the_actual_cost_and_its_metadata(service: Service, make: Make, name: str) -> None:
    limiter = make(service.url)
    dimensions = {"userId": name, "modelId": "assistant"}
    estimate = Cost(input_tokens=868, max_output_tokens=500)
    admitted = limiter.acquire(dimensions, cost=estimate, hold=60)
    settled = limiter.settle(admitted, Cost(query_tokens=12, context_tokens=856, output_tokens=145))
    assert settled.recorded and not settled.replayed
    expected = {"api_cost_usd": 0.0002606, "rate_limited": False, "query_tokens": 12}
    expected.update({"context_tokens": 856, "output_tokens": 145})
    assert expected.items() <= settled.metadata.items()
    assert settled.metadata["request_duration_seconds"] > 0
    assert limiter.get_user_stats(name)["cost"]["today"] == 0.0002606


def test_a_denial_names_the_output_that_would_fit(make: Make, memory_service: Service, name: str) -> None:
    limiter = make(memory_service.url)
    denied = limiter.check({"userId": name}, cost=Cost(input_tokens=0, max_output_tokens=10_000_000))
    assert denied.reason == "EXCEEDS_USER_BUDGET_LIMIT"
    assert denied.retry_after is None
    assert denied.max_output_tokens == 8_333_333


def test_a_lease_gives_its_slot_back_at_the_end_of_the_block_also_after_an_error(memory_service: Service, name: str) -> None:
    with Limiter(memory_service.url, timeout=30) as limiter:
        current = lambda: limiter.usage({"slotId": name})[0].current  # noqa: E731
        with limiter.lease({"slotId": name}) as lease:
            assert lease.decision.allowed
            assert current() == 1
        assert current() == 0
        with pytest.raises(ZeroDivisionError), limiter.lease({"slotId": name}):
            raise ZeroDivisionError
        assert current() == 0


def test_an_async_lease_gives_its_slot_back_also_if_its_task_is_cancelled(memory_service: Service, name: str) -> None:
    async def scenario() -> None:
        async with AsyncLimiter(memory_service.url, timeout=30) as limiter:
            entered = asyncio.Event()

            async def work() -> None:
                async with limiter.lease({"slotId": name}):
                    entered.set()
                    await asyncio.Event().wait()

            task = asyncio.create_task(work())
            await entered.wait()
            assert (await limiter.usage({"slotId": name}))[0].current == 1
            task.cancel()
            await asyncio.wait([task])
            await limiter.close()
            assert (await limiter.usage({"slotId": name}))[0].current == 0

    asyncio.run(scenario())


def test_a_lease_that_is_denied_raises_and_names_the_wait(memory_service: Service, name: str) -> None:
    with Limiter(memory_service.url, timeout=30) as limiter:
        with limiter.lease({"slotId": name}), limiter.lease({"slotId": name}):
            with pytest.raises(Denied, match="Rate limit exceeded: 2 at the same time") as denied:
                with limiter.lease({"slotId": name}):
                    pass
        assert denied.value.retry_after is not None


def test_a_settled_lease_is_not_released_again(memory_service: Service, name: str) -> None:
    with Limiter(memory_service.url, timeout=30) as limiter:
        with limiter.lease({"userId": name}, cost=Cost(usd="0.10"), hold="2min") as lease:
            assert lease.settle(Cost(usd=Decimal("0.04"))).recorded
        assert limiter.get_user_stats(name)["cost"]["today"] == 0.04
        assert limiter.stats.unsettled == 0


def test_a_cancelled_lease_gives_everything_back(memory_service: Service, name: str) -> None:
    with Limiter(memory_service.url, timeout=30) as limiter:
        with limiter.lease({"userId": name}, cost=Cost(usd="0.10"), hold=60) as lease:
            lease.cancel()
        stats = limiter.get_user_stats(name)
        assert (stats["limits"]["minute"]["current"], stats["cost"]["today"]) == (0, 0)



def test_leases_are_renewed_for_as_long_as_their_block_runs(memory_service: Service, name: str) -> None:
    # The lease of the rule is one second: the block ends after its first lease would have ended.
    with Limiter(memory_service.url, timeout=30) as limiter:
        with limiter.lease({"briefId": name}) as lease:
            began = time.monotonic()
            until(lambda: time.monotonic() - began > lease.decision.lease_seconds + 0.5)  # type: ignore[operator]
            assert limiter.usage({"briefId": name})[0].current == 1
        assert limiter.usage({"briefId": name})[0].current == 0

    async def scenario() -> None:
        async with AsyncLimiter(memory_service.url, timeout=30) as limiter:
            async with limiter.lease({"briefId": name}) as lease:
                assert lease.decision.lease_seconds is not None
                await asyncio.sleep(lease.decision.lease_seconds + 0.5)
                assert (await limiter.usage({"briefId": name}))[0].current == 1

    asyncio.run(scenario())


def test_a_booking_waits_for_its_turn(memory_service: Service, make: Make, name: str) -> None:
    limiter = make(memory_service.url)
    # 2/s: the third one waits for at least a window.
    began = time.monotonic()
    for _ in range(3):
        assert limiter.until_ready({"provider": name}).allowed
    assert time.monotonic() - began >= 1.0


def test_a_booking_that_waits_too_long_is_denied_and_given_back(memory_service: Service, make: Make, name: str) -> None:
    limiter = make(memory_service.url)
    limiter.until_ready({"slowId": name})
    with pytest.raises(Denied) as denied:
        limiter.until_ready({"slowId": name}, wait_max=0.01)
    assert denied.value.decision.reason == "WAIT_TOO_LONG"
    until(lambda: limiter.usage({"slowId": name})[0].current == 1)


def test_a_cancelled_task_gives_its_booking_back(memory_service: Service, name: str) -> None:
    async def scenario() -> None:
        async with AsyncLimiter(memory_service.url, timeout=30) as limiter:
            await limiter.until_ready({"slowId": name})

            async def current(expected: int) -> None:
                while (await limiter.usage({"slowId": name}))[0].current != expected:
                    await asyncio.sleep(0.01)

            task = asyncio.create_task(limiter.until_ready({"slowId": name}))
            await asyncio.wait_for(current(2), 30)
            task.cancel()
            await asyncio.wait_for(current(1), 30)

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", ["acquire", "lease", "until_ready", "middleware"])
def test_a_task_that_is_cancelled_before_its_decision_arrives_leaves_nothing_behind(
    memory_service: Service, name: str, kind: str
) -> None:
    async def ask(limiter: AsyncLimiter, dimensions: dict[str, str]) -> None:
        if kind == "acquire":
            await limiter.acquire(dimensions)
        elif kind == "until_ready":
            await limiter.until_ready(dimensions)
        elif kind == "lease":
            async with limiter.lease(dimensions):
                pass
        else:
            app = RateLimitMiddleware(never, limiter, lambda connection: dimensions)
            await app({"type": "http", "path": "/", "headers": []}, never, never)

    async def never(*_: Any) -> Any:
        raise AssertionError("it is cancelled before")

    async def scenario() -> None:
        proxy = Proxy(memory_service.url)
        dimensions = {"slowId" if kind == "until_ready" else "slotId": name}
        async with AsyncLimiter(memory_service.url, timeout=30) as other:
            limiter = AsyncLimiter(proxy.url, timeout=30)

            async def current(expected: int) -> None:
                while (await other.usage(dimensions))[0].current != expected:
                    await asyncio.sleep(0.01)

            proxy.passing.clear()
            task = asyncio.create_task(ask(limiter, dimensions))
            await asyncio.wait_for(current(1), 30)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            proxy.passing.set()
            await asyncio.wait_for(current(0), 30)
            await limiter.close()
        proxy.close()

    asyncio.run(scenario())


def test_limits_of_the_request_are_checked_together_with_the_rules(memory_service: Service, make: Make, name: str) -> None:
    limiter = make(memory_service.url)
    limits = [InlineLimit("PER_IP", name, "1/minute")]
    assert limiter.acquire({"userId": name}, limits=limits).allowed
    assert limiter.acquire({"userId": name}, limits=limits).reason == "HIT_PER_IP_LIMIT"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("100/minute", "100/min"), ("5 per second", "5/s"), ("5/2 hours", "5/2h"), ("20000 tokens/min", "20000 tokens/min")],
)
def test_limits_of_slowapi_are_understood(text: str, expected: str) -> None:
    assert parse_limit(text) == expected


def test_a_number_as_a_limit_names_the_remedy() -> None:
    with pytest.raises(TypeError, match='limit 10: must be a text with an amount and a window, such as "10/minute"'):
        Limiter("http://127.0.0.1:1").check_rate_limit("u", limit=10)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2ff:3:4:5:6", "2001:db8:1:200::/56"),
        ("fe80::1%eth0", "fe80::/56"),
        ("unix:/run/app.sock", "unix:/run/app.sock"),
    ],
)
def test_addresses_count_by_host_or_by_network(address: str, expected: str) -> None:
    assert network_of(address) == expected
    assert Connection({"client": (address, 1)}).client_network == expected


@pytest.mark.parametrize("text", ["100/day", "0/min", "lots", "1.5/min", ""])
def test_a_limit_that_is_not_understood_names_the_remedy(text: str) -> None:
    with pytest.raises(ValueError, match='such as "100/minute"'):
        parse_limit(text)


def test_the_calls_of_the_old_program_work(memory_service: Service, name: str) -> None:
    async def scenario() -> None:
        async with AsyncLimiter(memory_service.url, timeout=30) as limiter:
            user = int(name.partition("-")[2]) + 1_000_000
            decision = await limiter.check_rate_limit(user, limit="2/minute", dimensions={"slotId": name})
            try:
                assert decision.allowed
            finally:
                await limiter.release(decision)
            assert (await limiter.usage({"slotId": name}))[0].current == 0
            assert await limiter.check_rate_limit(user, limit="2/minute")
            denied = await limiter.check_rate_limit(user, limit="2/minute")
            assert denied.reason == "HIT_USER_LIMIT_LIMIT"
            await limiter.release(denied)
            stats = await limiter.get_user_stats(user, unix_time=True)
            assert stats["user_id"] == user
            assert abs(stats["timestamp"] - time.time()) < 60
            assert stats["limits"]["minute"] == {"current": 2, "limit": 10, "remaining": 8}

    asyncio.run(scenario())


def test_an_invalid_request_is_an_error_that_names_the_field(memory_service: Service, make: Make, name: str) -> None:
    limiter = make(memory_service.url, on_unavailable="open")
    with pytest.raises(ApiError) as error:
        limiter.acquire({"userId": "x" * 300})
    assert error.value.status == 400
    assert error.value.detail.startswith("dimensions.userId: ")
    with pytest.raises(TypeError, match=r"dimension userId: must be a text, not int: write str\(7\)"):
        limiter.acquire({"userId": 7})
    with pytest.raises(TypeError, match="usd: a float is not exact"):
        Cost(usd=0.1)  # type: ignore[arg-type]
    with pytest.raises(ApiError):
        limiter.settle("no handle", Cost(usd="1"))


def test_mistakes_in_options_are_found_at_once() -> None:
    with pytest.raises(ValueError, match="on_unavailable 'opn': write one of open, closed, raise"):
        Limiter(on_unavailable="opn")
    with pytest.raises(ValueError, match="write http:// or https:// and a host"):
        Limiter("localhost:8080")
    limiter = Limiter()
    with pytest.raises(TypeError, match=r"dimensions: .*work has no parameter 'user' \(known: user_id\)"):

        @limiter.limit(lambda user: {"userId": user})
        def work(user_id: str) -> None: ...

    with pytest.raises(TypeError, match="is not a coroutine function"):
        AsyncLimiter().limit({})(print)

    async def asynchronous() -> None: ...

    def generator() -> Any:
        yield

    with pytest.raises(TypeError, match="is asynchronous, and would end before its work: use AsyncLimiter.limit"):
        limiter.limit({})(asynchronous)
    with pytest.raises(TypeError, match="is a generator, and would end before its work: use lease in its body"):
        limiter.limit({})(generator)


def test_a_decorator_takes_its_dimensions_from_the_arguments(memory_service: Service, name: str) -> None:
    with Limiter(memory_service.url, timeout=30) as limiter:

        @limiter.limit(lambda user_id: {"orgId": user_id}, skip_when=lambda admin: admin)
        def work(user_id: str, admin: bool = False) -> str:
            """Works."""
            return user_id

        assert work.__doc__ == "Works."
        assert [work(name) for _ in range(3)] == [name] * 3
        with pytest.raises(Denied):
            work(name)
        assert work(name, admin=True) == name

    async def scenario() -> None:
        async with AsyncLimiter(memory_service.url, timeout=30) as limiter:

            @limiter.limit(lambda user_id: {"orgId": user_id}, cost=3)
            async def work(user_id: str) -> str:
                return user_id

            assert await work(f"{name}-async") == f"{name}-async"
            with pytest.raises(Denied):
                await work(f"{name}-async")

    asyncio.run(scenario())


def test_a_token_is_sent(name: str, make: Make) -> None:
    with Service("auth: {tokens: {app: '0123456789abcdef'}}") as service:
        dimensions = {"userId": name, "modelId": "m"}
        assert make(service.url, token="0123456789abcdef").acquire(dimensions).allowed
        with pytest.raises(ApiError) as error:
            make(service.url).acquire(dimensions)
        assert error.value.status == 401


@pytest.mark.parametrize(
    ("policy", "allowed", "status"), [("open", True, 200), ("closed", False, 503)], ids=["open", "closed"]
)
def test_the_policy_decides_and_counts_while_the_service_is_down(
    make: Make, policy: str, allowed: bool, status: int
) -> None:
    seen: list[str] = []
    limiter = make("http://127.0.0.1:1", on_unavailable=policy, on_failure=lambda error, by: seen.append(by))
    for _ in range(8):
        decision = limiter.acquire({"userId": "u"})
        assert (decision.allowed, decision.status, decision.failed) == (allowed, status, True)
    assert getattr(limiter.stats, f"failed_{policy}") == 8
    assert seen == [policy] * 8
    assert not limiter.settle("0" * 32 + ".x", Cost(usd="1")).recorded
    assert limiter.stats.unsettled == 1


def test_an_outage_raises_if_it_is_configured(make: Make) -> None:
    limiter = make("http://127.0.0.1:1", on_unavailable="raise")
    for _ in range(8):
        with pytest.raises(Unavailable, match=r"can't connect to 127\.0\.0\.1:1"):
            limiter.acquire({"userId": "u"})


def test_a_silent_service_is_answered_by_the_policy_after_the_timeout(make: Make, proxy: Proxy, name: str) -> None:
    limiter = make(proxy.url, timeout=0.2, on_unavailable="open")
    proxy.swallow = True
    assert limiter.acquire({"orgId": name}).source == "fail_open"
    proxy.swallow = False
    # The machine may be busy: the first answer can also take longer than the timeout.
    until(lambda: limiter.acquire({"orgId": name}).source == "service")


def test_a_distant_service_is_waited_for(make: Make, proxy: Proxy, name: str) -> None:
    proxy.delay = 0.1
    limiter = make(proxy.url)
    assert [limiter.acquire({"orgId": name}).allowed for _ in range(4)] == [True, True, True, False]


def test_connections_are_reused(make: Make, proxy: Proxy, name: str) -> None:
    limiter = make(proxy.url)
    for _ in range(20):
        limiter.check({"orgId": name})
    assert proxy.connections == 1


def test_an_answer_of_another_program_is_an_outage_not_a_decision(make: Make) -> None:
    import http.server

    class Page(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>")

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        limiter = make(f"http://127.0.0.1:{server.server_port}", on_unavailable="raise", timeout=10)
        with pytest.raises(Unavailable, match="is not of a Sluicegate service: check the url"):
            limiter.acquire({"userId": "u"})
        server.shutdown()


def test_threads_share_a_limiter_and_never_exceed_the_limit(service: Service, name: str) -> None:
    with Limiter(service.url, connections_max=4, timeout=30) as limiter, ThreadPoolExecutor(15) as threads:
        decisions = list(threads.map(lambda _: limiter.acquire({"userId": name}), range(15)))
    assert sum(decision.allowed for decision in decisions) == 10
    assert all(decision.retry_after for decision in decisions if not decision.allowed)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_tasks_share_a_limiter_and_never_exceed_the_limit(service: Service, name: str, run: Callable[..., int]) -> None:
    limiter = AsyncLimiter(service.url, connections_max=4, timeout=30)

    async def scenario(user: str) -> int:
        decisions = await asyncio.gather(*(limiter.acquire({"userId": user}) for _ in range(15)))
        await limiter.close()
        return sum(decision.allowed for decision in decisions)

    assert run(scenario(name)) == 10
    # A second event loop: the connections of the first are gone.
    assert run(scenario(f"{name}-again")) == 10


class Load:
    """Four callers that ask for decisions until the end of the block, in threads or in tasks."""

    CALLERS = 4

    def __init__(self, kind: str, url: str, on_unavailable: str) -> None:
        self.decisions: list[Decision] = []
        # Much shorter than the time of `until`: a call that waits for its timeout during the outage is followed by others.
        self._options: dict[str, Any] = {"url": url, "on_unavailable": on_unavailable, "timeout": 5}
        self._errors: list[BaseException] = []
        self._stop = threading.Event()
        ask = self._ask if kind == "sync" else lambda: asyncio.run(self._ask_in_tasks())
        threads = self.CALLERS if kind == "sync" else 1
        self._threads = [threading.Thread(target=self._run, args=(ask,)) for _ in range(threads)]

    def _run(self, ask: Callable[[], None]) -> None:
        try:
            ask()
        except BaseException as error:
            self._errors.append(error)

    def _ask(self) -> None:
        with Limiter(**self._options) as limiter:
            while not self._stop.is_set():
                self.decisions.append(limiter.acquire())
                time.sleep(0.001)  # During the outage the policy decides at once: leave the processor to the service.

    async def _ask_in_tasks(self) -> None:
        async with AsyncLimiter(**self._options) as limiter:

            async def ask() -> None:
                while not self._stop.is_set():
                    self.decisions.append(await limiter.acquire())
                    await asyncio.sleep(0.001)

            await asyncio.gather(*(ask() for _ in range(self.CALLERS)))

    def until(self, condition: Callable[[Decision], bool]) -> None:
        """Waits for a new decision that meets the condition."""
        seen = len(self.decisions)
        until(lambda: self._errors or any(condition(decision) for decision in self.decisions[seen:]))
        assert not self._errors

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert not self._errors


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_service_that_is_killed_and_restarted_under_load_is_found_again(kind: str) -> None:
    limits = "limits: [{name: all, rules: [{name: ALL, per: [], limit: 100000/min}]}]"
    with Service(limits) as service, Load(kind, service.url, "open") as load:
        load.until(lambda decision: decision.source == "service")
        service.kill()
        load.until(lambda decision: decision.source == "fail_open")
        service.start()
        load.until(lambda decision: decision.source == "service")


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_limit_on_redis_holds_when_the_service_is_killed_and_restarted_under_load(kind: str) -> None:
    # Per hour: no request leaves the window during the test, however slow the machine is.
    limit = 100
    limits = f"limits: [{{name: all, rules: [{{name: ALL, per: [], limit: {limit}/h}}]}}]"
    with private_redis() as address, Service(on_redis(address, limits)) as service:
        proxy = Proxy(service.url)
        # Slow answers: the service is killed long before the limit is used up.
        proxy.delay = 0.03
        try:
            with Load(kind, proxy.url, "closed") as load:
                load.until(lambda decision: decision.allowed)
                service.kill()
                load.until(lambda decision: decision.source == "fail_closed")
                service.start()
                load.until(lambda decision: decision.reason == "HIT_ALL_LIMIT")
        finally:
            proxy.close()
    admitted = sum(decision.allowed for decision in load.decisions)
    # Redis has kept the admissions from before the kill. In memory they would be lost, and the limit admitted once more.
    # Each caller had at most one call in progress at that time: it may be counted although its answer was lost.
    assert limit - Load.CALLERS <= admitted <= limit


def test_a_denial_by_the_outage_policy_of_the_service_is_a_decision(make: Make, name: str) -> None:
    with private_redis() as address:
        config = f"store: {{kind: redis, url: 'redis://{address}'}}\n"
        service = Service(config)
    with service:
        limiter = make(service.url, on_unavailable="open", timeout=10)
        dimensions = {"userId": name, "modelId": "m"}
        decision = limiter.acquire(dimensions)
        assert (decision.allowed, decision.status, decision.reason) == (False, 503, "STORE_UNAVAILABLE")
        assert limiter.stats.failed_open == 0


def test_a_forked_process_does_not_share_the_connections_of_its_parent(memory_service: Service, name: str) -> None:
    import os

    with Limiter(memory_service.url, timeout=30, on_unavailable="raise") as limiter:
        limiter.check({"userId": name})
        child = os.fork()
        if child == 0:
            # Both processes ask at once: on a shared connection each would read answers of the other.
            decided = all(limiter.check({"userId": f"{name}-child"}).allowed for _ in range(200))
            os._exit(0 if decided else 1)
        for _ in range(200):
            assert limiter.check({"userId": name}).allowed
        assert os.waitpid(child, 0)[1] == 0


def test_tls_is_verified_and_its_connections_are_reused(memory_service: Service, make: Make, name: str) -> None:
    authority = trustme.CA()
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("localhost").configure_cert(server)
    proxy = Proxy(memory_service.url, server)
    url = f"https://localhost:{proxy.url.rpartition(':')[2]}"
    try:
        with pytest.raises(Unavailable, match="certificate verify failed"):
            make(url, on_unavailable="raise").check({"orgId": name})
        authority.configure_trust(client)
        limiter = make(url, ssl_context=client)
        assert [limiter.acquire({"orgId": name}).allowed for _ in range(4)] == [True, True, True, False]
        assert proxy.connections == 1
    finally:
        proxy.close()
