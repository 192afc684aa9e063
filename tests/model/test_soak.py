"""Memory stays flat, however many answers a worker has given: a whole worker over a real, tiny model.

Measured is RssAnon, what the process itself holds beside mapped files, at rest after each round of requests. The
requests differ in length, sampling, limits and users, some are stopped, and each round brings fresh prompts, so that
caches turn over.
"""

from __future__ import annotations

import logging
import random
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest
import uuid_utils.compat as uuid_utils
from redis import Redis

from inference import catalog
from inference.coordination import redis_keys
from inference.coordination.redis_client import connect
from inference.engine.engine import Engine
from inference.llama.loader import load
from inference.messages.generation import ChatMessage, FinishReason, GenerationRequest, Role, SamplingParams
from inference.prompt.builder import PromptBuilder
from inference.worker.attempt.context import Served
from inference.worker.process.runtime import Runtime
from inference.worker.tasks import answer_waiting
from tests.model.conftest import small_config
from tests.worker.scripted import Store, settings

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self/status"),
]

ROUND = 100  # requests
NUM_THREADS = 8


def anonymous_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    found = re.search(r"^RssAnon:\s+(\d+) kB", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


@pytest.fixture
def runtime(redis: Redis, valkey_url: str, tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runtime]:
    monkeypatch.setattr(logging.root.manager, "disable", logging.INFO)  # pytest keeps every record of a test
    config = settings(valkey_url, LEASE_SECONDS=60)
    model = load(catalog.entry_of_path(tiny_path), small_config(WORKER_SLOTS=str(NUM_THREADS)))
    engine = Engine(model.backend, end_tokens=model.end_tokens, target_itl_ms=1000)
    runtime = Runtime(
        config,
        connect(config),
        engine,
        Served.of(PromptBuilder(model.kit)),
        ring=lambda model: None,
        send_record=lambda generation_id: None,
    )
    runtime.start()
    yield runtime
    runtime.drain(0)
    runtime.stop()


class Crowd:
    def __init__(self, runtime: Runtime, store: Store) -> None:
        self._runtime = runtime
        self._store = store
        self._model = runtime.bench.model.name
        self._chance = random.Random(3)
        self.reasons: set[FinishReason] = set()

    def ask(self, count: int) -> None:
        """Have `count` requests answered, and everything of them forgotten in Redis."""
        requests = [self._request() for _ in range(count)]
        for request in requests:
            assert self._store.room.enter(request)
            if self._chance.random() < 0.05:
                self._store.redis.hset(redis_keys.generation(request.id), "stop", "1")
        threads = [
            threading.Thread(target=answer_waiting, args=(self._runtime, self._model)) for _ in range(NUM_THREADS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for request in requests:
            self.reasons.add(self._store.finish_of(request.id).reason)
        self._store.redis.flushall()

    def _request(self) -> GenerationRequest:
        chance = self._chance
        words = [
            chance.choice(["sea", "ice", "lamp", "bread", "Turm", "été", "猫"]) for _ in range(chance.randint(1, 40))
        ]
        options: dict[str, Any] = chance.choice(
            [{"temperature": 0.0}, {"temperature": 1.0, "top_k": 20}, {"top_p": 0.9, "stop": ("sea",)}, {"logprobs": 2}]
        )
        return GenerationRequest(
            id=UUID(str(uuid_utils.uuid7())),
            model=self._model,
            user_key=f"user-{chance.randrange(50)}",
            conversation_key=f"talk-{chance.randrange(200)}",
            messages=(ChatMessage(role=Role.USER, content=" ".join(words)),),
            sampling=SamplingParams(max_tokens=chance.randint(1, 12), **options),
        )


def bytes_per_request(runtime: Runtime, store: Store, *, warm_up: int, count: int) -> float:
    crowd = Crowd(runtime, store)
    crowd.ask(warm_up)
    held = [anonymous_bytes()]
    for _ in range(count // ROUND):
        crowd.ask(ROUND)
        held.append(anonymous_bytes())
    assert FinishReason.ERROR not in crowd.reasons
    assert FinishReason.LENGTH in crowd.reasons
    assert runtime.attempts.all() == []
    slope = float(np.polyfit(np.arange(len(held)) * ROUND, held, 1)[0])
    print(f"{slope:.0f} bytes per request; MiB held: {[round(size / 2**20, 2) for size in held]}")
    return slope


@pytest.mark.slow
def test_nothing_is_kept_of_an_answer(runtime: Runtime, store: Store) -> None:
    assert bytes_per_request(runtime, store, warm_up=500, count=5_000) < 1024


@pytest.fixture
def store(redis: Redis, valkey_url: str) -> Store:
    return Store(redis, settings(valkey_url))
