"""pytest plugin with a private Sluicegate service.

Fixtures: `sluicegate_service` (the service of the session), `sluicegate_url` (its address), `sluicegate_limiter` and
`sluicegate_async_limiter`. Override `sluicegate_config` in ``conftest.py`` to set the limits.
"""

from __future__ import annotations

from typing import Iterator

import pytest

from ._async_limiter import AsyncLimiter
from ._limiter import Limiter
from .testing import Service


@pytest.fixture(scope="session")
def sluicegate_config() -> str:
    """Returns the configuration of the service, without ``listen``. Override it to set your own limits."""
    return ""


@pytest.fixture(scope="session")
def sluicegate_service(sluicegate_config: str) -> Iterator[Service]:
    """Runs a private service for the length of the test session."""
    with Service(sluicegate_config) as service:
        yield service


@pytest.fixture
def sluicegate_url(sluicegate_service: Service) -> str:
    """Returns the address of the private service."""
    return sluicegate_service.url


@pytest.fixture
def sluicegate_limiter(sluicegate_url: str) -> Iterator[Limiter]:
    """Returns a `Limiter` of the private service."""
    with Limiter(sluicegate_url) as limiter:
        yield limiter


@pytest.fixture
def sluicegate_async_limiter(sluicegate_url: str) -> AsyncLimiter:
    """Returns an `AsyncLimiter` of the private service."""
    return AsyncLimiter(sluicegate_url)
