from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Redis

from tests.worker.scripted import ScriptedWorker, Store, settings


@pytest.fixture
def store(redis: Redis, valkey_url: str) -> Store:
    return Store(redis, settings(valkey_url))


@pytest.fixture
def make_worker(redis: Redis, valkey_url: str) -> Iterator[Callable[..., ScriptedWorker]]:
    """Makes running workers and stops them at the end."""
    workers: list[ScriptedWorker] = []

    def make(answers: dict[str, str] | None = None, **options: Any) -> ScriptedWorker:
        worker = ScriptedWorker(options.pop("redis_url", valkey_url), answers, **options)
        workers.append(worker)
        return worker

    yield make
    for worker in workers:
        worker.stop()
        assert worker.exit_codes == []
