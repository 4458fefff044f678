"""The package as users get it: the wheel in an empty environment, the README, the pytest plugin, the types."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from readme import README, blocks

from sluicegate.testing import Service, program

FOLDER = README.parent


def run(*line: object, **env: str) -> str:
    cleared = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in line], env={**cleared, **env}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds the wheel and installs it into an empty environment. Returns its Python."""
    folder = tmp_path_factory.mktemp("installed")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
    run(*pip, "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", folder, FOLDER)
    (wheel,) = folder.glob("sluicegate-*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv")
    python = folder / "venv/bin/python"
    run(*pip, "--python", python, "install", "--no-index", wheel)
    return python


def test_the_wheel_works_without_any_other_package(installed: Path, memory_service: Service) -> None:
    script = "import sluicegate; print(sluicegate.__file__, sluicegate.Limiter().check({'userId': 'wheel'}).allowed)"
    printed = run(installed, "-c", script, SLUICEGATE_URL=memory_service.url)
    path, allowed = printed.split()
    assert str(installed.parent.parent) in path
    assert allowed == "True"
    assert (Path(path).parent / "py.typed").exists()


def test_every_example_of_the_readme_runs_with_the_wheel(installed: Path) -> None:
    # The frameworks come from the environment of the tests, the package from the wheel.
    frameworks = sysconfig.get_path("purelib")
    driver = f"import sys; sys.path.append({frameworks!r}); sys.path.insert(0, {str(FOLDER / 'tests')!r}); "
    driver += "import sluicegate, readme; assert 'venv' in sluicegate.__file__; readme.main()"
    with Service("\n".join(blocks("yaml"))) as service:
        printed = run(installed, "-c", driver, SLUICEGATE_URL=service.url)
    assert printed.count(": 200") == 4, printed


def test_the_pytest_plugin_of_the_wheel_starts_a_private_service(installed: Path, tmp_path: Path) -> None:
    (block,) = [block for block in blocks("python") if "import pytest" in block]
    (tmp_path / "test_readme.py").write_text(block)
    arguments = ["-q", "-p", "no:cacheprovider", str(tmp_path)]
    # The entry point is in the wheel.
    driver = f"import sys; sys.path.append({sysconfig.get_path('purelib')!r}); "
    driver += f"import pytest; raise SystemExit(pytest.main({arguments!r}))"
    assert "1 passed" in run(installed, "-c", driver, SLUICEGATE_PROGRAM=program())


def test_the_package_uses_nothing_newer_than_the_python_that_it_claims() -> None:
    manifest = (FOLDER / "pyproject.toml").read_text()
    found = re.search(r'^requires-python = ">=(.*)"$', manifest, re.MULTILINE)
    assert found, manifest
    # Syntax, modules, functions, arguments, and annotations, which FastAPI evaluates.
    vermin = (Path(sys.executable).parent / "vermin", "--no-tips", "--eval-annotations", "--violations")
    run(*vermin, f"--target={found[1]}-", FOLDER / "src")


def test_the_types_are_complete(tmp_path: Path) -> None:
    # In the environment of the tests, so that it is kept between runs.
    cache = Path(sys.prefix) / "mypy-cache"
    mypy = (sys.executable, "-m", "mypy", "--cache-dir", cache)
    run(*mypy, "--config-file", FOLDER / "pyproject.toml", MYPYPATH=str(FOLDER / "src"))
    # A caller sees the types, too.
    caller = tmp_path / "caller.py"
    caller.write_text(
        "from sluicegate import Limiter, AsyncLimiter, AsyncQueue, Decision, Message, Queue\n"
        "d: Decision = Limiter().acquire({'userId': 'u'})\n"
        "async def main() -> bool:\n"
        "    async with AsyncLimiter().lease({'userId': 'u'}) as lease:\n"
        "        return lease.decision.allowed\n"
        "@Limiter().limit({'userId': 'u'})\n"
        "def work(n: int) -> str:\n"
        "    return str(n)\n"
        "text: str = work(1)\n"
        "def handle(message: Message) -> None:\n"
        "    Queue('jobs').send_to_dlq(message, 'no')\n"
        "count: int = Queue('jobs').work(handle, limit=1)\n"
        "async def handle_async(message: Message) -> None:\n"
        "    await AsyncQueue('jobs').delete(message)\n"
        "async def run() -> int:\n"
        "    return await AsyncQueue('jobs').work(handle_async, limit=1)\n"
    )
    run(*mypy, "--strict", caller, MYPYPATH=str(FOLDER / "src"))
