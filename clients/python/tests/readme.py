"""Runs every Python block of the README against the service at SLUICEGATE_URL, and asks the applications in them."""

from __future__ import annotations

import asyncio
import re
import sys
import types
from pathlib import Path
from typing import Any

README = Path(__file__).parent.parent / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)


def main() -> None:
    for number, text in enumerate(blocks("python")):
        module = types.ModuleType(f"readme_{number}")
        sys.modules[module.__name__] = module  # FastAPI and Django look names up in it.
        exec(compile(text, f"README.md block {number}", "exec"), module.__dict__)
        status, headers = ask(module, {"x-user-id": f"reader-{number}"})
        if status:
            assert status == 200, (number, status)
            assert {name.lower() for name in headers} >= {"x-ratelimit-remaining", "ratelimit"}, (number, headers)
        print(f"block {number}: {status or 'ran'}")


def ask(module: types.ModuleType, headers: dict[str, str]) -> tuple[int, Any]:
    """Sends a request to the application of a block, if there is one."""
    if hasattr(module, "application"):
        from django.test import Client

        response = Client(headers=headers).get("/hello")
        return response.status_code, response.headers
    app = getattr(module, "app", None)
    if app is None or hasattr(module, "chat"):
        return 0, {}
    if hasattr(app, "test_client"):
        response = app.test_client().get("/hello", headers=headers)
        return response.status_code, dict(response.headers)

    async def get() -> Any:
        import httpx

        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.get("/hello", headers=headers)

    answer = asyncio.run(get())
    return answer.status_code, answer.headers


if __name__ == "__main__":
    main()
