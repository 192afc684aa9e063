"""Fixtures every folder of tests may use. The servers behind them are started by `tests.servers`."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import redis as redis_py

from tests.fleet import Fleet


@pytest.fixture(scope="session")
def valkey_url() -> str:
    return os.environ["REDIS_URL"]


@pytest.fixture
def redis(valkey_url: str) -> Iterator[redis_py.Redis]:
    """The run's Valkey, emptied before and after."""
    connection = redis_py.Redis.from_url(valkey_url)
    connection.flushall()
    yield connection
    connection.flushall()
    connection.close()


@pytest.fixture(scope="session")
def fleet() -> Iterator[Fleet]:
    """One running site of real processes for all tests that only use it. Who breaks something starts its own."""
    with Fleet() as running:
        yield running


@pytest.fixture(scope="session")
def live_site(fleet: Fleet) -> Fleet:
    """The same for tests that see it through a browser: `.url` is all they need."""
    return fleet
