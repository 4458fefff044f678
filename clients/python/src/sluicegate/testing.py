"""Starts private Sluicegate services, for tests of applications."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Any, Dict, List, Mapping, Optional, Union

#: Environment variable with the path of the `sluicegate` program; otherwise it is searched in PATH.
PROGRAM_VARIABLE = "SLUICEGATE_PROGRAM"


def program() -> str:
    """Returns the path of the `sluicegate` program."""
    found = os.environ.get(PROGRAM_VARIABLE) or shutil.which("sluicegate")
    if not found:
        raise FileNotFoundError(f"sluicegate is not in PATH: install it, or set {PROGRAM_VARIABLE} to its path")
    return found


class Service:
    """A running `sluicegate serve` with a configuration of its own, on free ports of this machine.

    ``config`` is the text of a configuration file without ``listen``. Use it in a ``with`` statement, or call
    ``stop``.
    """

    def __init__(self, config: str = "", *, env: Optional[Mapping[str, str]] = None, start_seconds: float = 30.0) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="sluicegate-")
        self._config = config
        self._env = dict(env or {})
        self._start_seconds = start_seconds
        self._addresses: Dict[str, str] = {}
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._lines: List[str] = []
        self.start()

    @property
    def url(self) -> str:
        """Address of the HTTP API. It stays the same after `restart`."""
        return f"http://{self._addresses['http']}"

    @property
    def admin_url(self) -> str:
        """Address of metrics and reload."""
        return f"http://{self._addresses['admin']}"

    @property
    def log(self) -> str:
        """All lines that the service has written to standard error."""
        return "".join(self._lines)

    def start(self) -> None:
        """Starts the service, on the ports of the previous start if there was one."""
        path = Path(self._folder.name) / "sluicegate.yaml"
        listen = {name: self._addresses.get(name, "127.0.0.1:0") for name in ("http", "grpc", "admin")}
        path.write_text(f"listen: {json.dumps(listen)}\n{self._config}")
        with open(Path(self._folder.name) / "decisions.log", "ab") as decisions:
            self._process = subprocess.Popen(
                [program(), "serve", "--config", str(path)],
                cwd=self._folder.name,
                stdin=subprocess.DEVNULL,
                stdout=decisions,
                stderr=subprocess.PIPE,
                env={**os.environ, **self._env},
            )
        ready = threading.Event()
        assert self._process.stderr is not None
        threading.Thread(target=self._read, args=(self._process.stderr, ready), daemon=True).start()
        deadline = time.monotonic() + self._start_seconds
        while not ready.wait(0.05):
            if self._process.poll() is not None:
                raise RuntimeError(f"sluicegate ended with status {self._process.returncode}:\n{self.log}")
            if time.monotonic() > deadline:
                self.kill()
                raise TimeoutError(f"sluicegate did not start within {self._start_seconds} s:\n{self.log}")

    def _read(self, stderr: IO[bytes], ready: threading.Event) -> None:
        addresses: Dict[str, str] = {}
        for raw in stderr:
            line = raw.decode(errors="replace")
            self._lines.append(line)
            event = _parse(line)
            if event.get("message") == "listening":
                addresses[event["listener"]] = event["address"]
                if len(addresses) == 3:
                    self._addresses = addresses
                    ready.set()

    def stop(self) -> None:
        """Stops the service and deletes its files."""
        self._end(signal.SIGTERM)
        self._folder.cleanup()

    def kill(self) -> None:
        """Ends the process at once, as a crash does. `start` starts it again."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Kills the service and starts it again on the same ports. Usage in memory is lost."""
        self.kill()
        self.start()

    def _end(self, number: int) -> None:
        if self._process is not None:
            if self._process.poll() is None:
                self._process.send_signal(number)
            try:
                self._process.wait(15)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _parse(line: str) -> Dict[str, Any]:
    try:
        event: Union[Dict[str, Any], Any] = json.loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}
