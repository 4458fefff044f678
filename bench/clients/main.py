"""`cargo xtask bench clients`: compares our clients with bare HTTP calls, and our ASGI middleware with slowapi.

All subjects run at the same time and are measured alternately, so that a disturbance of the machine affects all of
them. With two or more cores, the subject (a client or the web application) runs on the first core; the service, Redis
and wrk share the last one.
"""

from __future__ import annotations

import argparse
import http.client
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from json import loads
from pathlib import Path
from statistics import median
from typing import Callable, Dict, Iterator, List, Optional

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PACKAGE = ROOT / "clients/python/src"
NODE = ROOT / "clients/node"
sys.path.insert(0, str(PACKAGE))

from sluicegate.testing import PROGRAM_VARIABLE, Service  # noqa: E402

#: Requests in flight: alone, for the latency of a call; and together, for the highest rate.
IN_FLIGHT = 32
#: (users, limit per user) of requests that are all admitted, and of requests that are nearly all denied.
ADMITTED, DENIED = (1000, "100000/minute"), (10, "10/minute")

Row = Dict[str, float]


@dataclass
class Subject:
    """One measured program."""

    name: str
    measure: Callable[[], Row]
    rows: List[Row] = field(default_factory=list)
    #: Promise of the limiter, for the table.
    guarantee: str = ""

    def figures(self, key: str) -> List[float]:
        return [row[key] for row in self.rows]


class Processes:
    """The started programs. They end with the benchmark."""

    def __init__(self) -> None:
        self._started: List[subprocess.Popen[str]] = []
        self._services: List[Service] = []
        self.folder = tempfile.mkdtemp(prefix="sluicegate-bench-")

    def start(self, line: List[str], env: Optional[Dict[str, str]] = None, first_core: bool = False) -> subprocess.Popen[str]:
        pinned = ["taskset", "-c", "0", *line] if first_core else line
        process = subprocess.Popen(
            pinned,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if first_core else subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": f"{PACKAGE}:{HERE}", "PYTHONDONTWRITEBYTECODE": "1", **(env or {})},
            cwd=self.folder,
            text=True,
        )
        self._started.append(process)
        return process

    def service(self, limit: str, store: str = "") -> str:
        """Starts a service with one limit per user. Returns its address."""
        rules = f"limits: [{{name: user, rules: [{{name: USER, per: [userId], limit: {limit}}}]}}]\n"
        # As a busy service would be run: the decision log of another is measured by `bench http`.
        quiet = "log: {decisions: {allowed: 0, denied: 0}}\n"
        self._services.append(Service(rules + quiet + store))
        return self._services[-1].url

    def end(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()
        for service in self._services:
            service.stop()
        shutil.rmtree(self.folder)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until_listening(process: subprocess.Popen[str], port: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        if process.poll() is not None:
            sys.exit(f"{process.args} ended with status {process.returncode}")
        if time.monotonic() > deadline:
            sys.exit(f"{process.args} does not listen on port {port}")
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.05)


def rounds(subjects: List[Subject], count: int) -> None:
    """Measures each subject once as a warm-up, then all of them in alternating rounds."""
    for number in range(count + 1):
        for subject in subjects:
            row = subject.measure()
            if number:
                subject.rows.append(row)


# Clients compared with the bare HTTP call


def callers(processes: Processes, url: str, seconds: float, in_flight: int) -> List[List[Subject]]:
    """Returns pairs of the bare call and our client."""
    python = [sys.executable, str(HERE / "caller.py")]
    rust = [str(ROOT / "target/client-bench/release/rust-caller")]
    node = [str(NODE / "node_modules/.bin/node"), str(HERE / "caller.mjs")]
    pairs = [
        [("Python, http.client", [*python, "http"]), ("Python, `Limiter`", [*python, "sync"])],
        [("Python, asyncio streams", [*python, "streams"]), ("Python, `AsyncLimiter`", [*python, "async"])],
        [("Node, node:http", [*node, "http"]), ("Node, `Limiter`", [*node, "limiter"])],
        [("Rust, hyper", [*rust, "hyper"]), ("Rust, `Limiter::remote`", [*rust, "limiter"])],
    ]
    if in_flight > 1:
        del pairs[0]  # One thread sends one call at a time.

    def subject(name: str, line: List[str]) -> Subject:
        process = processes.start([*line, url], first_core=True)

        def measure() -> Row:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(f"{seconds} {in_flight}\n")
            process.stdin.flush()
            answer = process.stdout.readline()
            if not answer:
                sys.exit(f"{name} ended: see above")
            row: Row = loads(answer)
            return {**row, "rate": row["calls"] / row["seconds"], "cpu": row["cpu"] / row["calls"] * 1e6}

        return Subject(name, measure)

    return [[subject(*one) for one in pair] for pair in pairs]


def report_callers(pairs: List[List[Subject]], in_flight: int) -> None:
    print(f"\n### Clients compared with the bare call, {in_flight} in flight\n")
    print("| | calls/s | min–max | of the bare call | CPU µs/call | p50 µs | added | p99 µs | added |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    for bare, ours in pairs:
        for subject in (bare, ours):
            rates = subject.figures("rate")
            cells = [subject.name, f"{median(rates):,.0f}", f"{min(rates):,.0f}–{max(rates):,.0f}"]
            cells.append(ratio(subject, bare, "rate") if subject is ours else "")
            cells.append(f"{median(subject.figures('cpu')):.0f}")
            for key in ("p50", "p99"):
                # Per round, so that a slow round is slow for both.
                added = median(one[key] - other[key] for one, other in zip(subject.rows, bare.rows))
                cells += [f"{median(subject.figures(key)):.0f}", f"{added:+.0f}" if subject is ours else ""]
            print(f"| {' | '.join(cells)} |")


def ratio(one: Subject, other: Subject, key: str) -> str:
    shares = [a[key] / b[key] for a, b in zip(one.rows, other.rows)]
    return f"{median(shares):.2f} ({min(shares):.2f}–{max(shares):.2f})"


# Our ASGI middleware compared with slowapi

WRK = """
local count, number = USERS, 0
function request()
  number = number % count + 1
  return wrk.format("GET", "/", {["x-user-id"] = "user-" .. number})
end
function done(summary, latency)
  local failed = summary.errors.connect + summary.errors.read + summary.errors.write + summary.errors.timeout
  io.write(string.format("figures %d %d %d %f %f %f\\n", summary.requests, summary.errors.status, failed,
    summary.duration / 1e6, latency:percentile(50), latency:percentile(99)))
end
"""


def applications(processes: Processes, redis: Iterator[str], seconds: float, users: int, limit: str) -> List[Subject]:
    script = Path(processes.folder) / f"{users}.lua"
    script.write_text(WRK.replace("USERS", str(users)))
    # The default timeouts of our store are those of a limiter that must answer at once; this machine may be busy.
    store = f"store: {{kind: redis, url: '{next(redis)}', timeout: 1s, deadline: 2s}}\n"
    short = limit.replace("minute", "min")

    def slowapi(strategy: str, headers: str) -> Dict[str, str]:
        return {"LIMITER": "slowapi", "STRATEGY": strategy, "HEADERS": headers, "REDIS_URL": next(redis)}

    def ours(store: str) -> Dict[str, str]:
        return {"LIMITER": "sluicegate", "SLUICEGATE_URL": processes.service(short, store)}

    exact = "exact: no minute has more than the limit"
    setups = [
        ("no limit", "", {"LIMITER": "none"}),
        ("slowapi on Redis, fixed window (its default)", "up to twice the limit around a boundary", slowapi("fixed-window", "off")),
        ("slowapi on Redis, moving window", exact, slowapi("moving-window", "off")),
        ("slowapi on Redis, moving window, header fields", exact, slowapi("moving-window", "on")),
        ("sluicegate on Redis, header fields", exact, ours(store)),
        ("sluicegate in memory, header fields", exact, ours("")),
    ]

    def subject(name: str, guarantee: str, env: Dict[str, str]) -> Subject:
        port = free_port()
        line = [sys.executable, "-m", "uvicorn", "app:app", "--workers", "1", "--no-access-log", "--log-level", "warning"]
        process = processes.start([*line, "--port", str(port)], {"LIMIT": limit, **env}, first_core=True)
        until_listening(process, port)

        def measure() -> Row:
            before = processor_seconds(process.pid)
            wrk = ["wrk", "--threads", "1", "--connections", str(IN_FLIGHT), "--duration", f"{seconds:.0f}s"]
            # A busy machine is slow, not wrong: a late response is counted by its latency.
            line = [*wrk, "--timeout", "30s", "--script", str(script), f"http://127.0.0.1:{port}"]
            done = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=True)
            found = re.search(r"figures (.*)", done.stdout)
            if found is None:
                sys.exit(f"wrk printed no figures:\n{done.stdout}")
            requests, refused, failed, took, p50, p99 = map(float, found[1].split())
            if failed:
                sys.exit(f"{name}: {failed:.0f} requests failed:\n{done.stdout}")
            # A limiter that fails would be fast, too.
            status = answer_status(port)
            if status not in (200, 429):
                sys.exit(f"{name}: answers with status {status}")
            cpu = (processor_seconds(process.pid) - before) / requests * 1e6
            admitted = 1 - refused / requests
            return {"rate": requests / took, "cpu": cpu, "p50": p50, "p99": p99, "admitted": admitted}

        return Subject(name, measure, guarantee=guarantee)

    return [subject(*setup) for setup in setups]


def answer_status(port: int) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    try:
        connection.request("GET", "/", headers={"x-user-id": "user-1"})
        return connection.getresponse().status
    finally:
        connection.close()


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def report_applications(title: str, subjects: List[Subject]) -> None:
    print(f"\n### FastAPI under uvicorn, one worker: {title}\n")
    print("| | window | requests/s | min–max | CPU µs/request | p50 ms | p99 ms | admitted |")
    print("|---|---|--:|--:|--:|--:|--:|--:|")
    for subject in subjects:
        rates = subject.figures("rate")
        cells = [subject.name, subject.guarantee, f"{median(rates):,.0f}", f"{min(rates):,.0f}–{max(rates):,.0f}"]
        cells.append(f"{median(subject.figures('cpu')):.0f}")
        cells += [f"{median(subject.figures(key)) / 1000:.1f}" for key in ("p50", "p99")]
        cells.append(f"{median(subject.figures('admitted')):.1%}")
        print(f"| {' | '.join(cells)} |")
    ours = subjects[4]
    print("\n| goal of sluicegate on Redis | target | measured (min–max) | |\n|---|--:|--:|--:|")
    for peer in subjects[1:4]:
        share = median(a["rate"] / b["rate"] for a, b in zip(ours.rows, peer.rows))
        verdict = "met" if share >= 1 else "missed"
        print(f"| requests/s against {peer.name} | ≥ 1.00 | {ratio(ours, peer, 'rate')} | {verdict} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="number of recorded rounds (default: 5)")
    parser.add_argument("--seconds", type=int, default=2, help="seconds per subject and round (default: 2)")
    parser.add_argument("--only", choices=("calls", "asgi"), help="run one half")
    args = parser.parse_args()
    os.environ[PROGRAM_VARIABLE] = str(ROOT / "target/dist-build/dist/sluicegate")
    cores = os.cpu_count() or 1
    # Inherited by the service, Redis and wrk.
    os.sched_setaffinity(0, {cores - 1})
    load = os.getloadavg()[0]
    processes = Processes()
    began = time.monotonic()
    try:
        run(processes, args)
    finally:
        processes.end()
    packages = ", ".join(f"{name} {version(name)}" for name in ("fastapi", "uvicorn", "slowapi", "limits", "redis"))
    print(
        f"\n{args.rounds} alternating rounds of {args.seconds:g} s, {cores} cores, load {load:.2f} at the start and "
        f"{os.getloadavg()[0]:.2f} at the end, {time.monotonic() - began:.0f} s.\n"
        f"Python {sys.version.split()[0]}, {packages}."
    )


def run(processes: Processes, args: argparse.Namespace) -> None:
    if args.only != "asgi":
        url = processes.service("100000/min")
        for in_flight in (1, IN_FLIGHT):
            # Half the time: a client alone reaches a steady state sooner than a web server.
            pairs = callers(processes, url, args.seconds / 2, in_flight)
            rounds([subject for pair in pairs for subject in pair], args.rounds)
            report_callers(pairs, in_flight)
    if args.only != "calls":
        port = free_port()
        server = processes.start(["redis-server", "--port", str(port), "--save", "", "--bind", "127.0.0.1"])
        until_listening(server, port)
        # A database for each limiter, so that none sees the keys of another.
        redis = (f"redis://127.0.0.1:{port}/{number}" for number in range(16))
        for title, (users, limit) in (("all admitted", ADMITTED), ("nearly all denied", DENIED)):
            subjects = applications(processes, redis, args.seconds, users, limit)
            rounds(subjects, args.rounds)
            report_applications(f"{title} ({users} users, {limit} each)", subjects)


if __name__ == "__main__":
    main()
