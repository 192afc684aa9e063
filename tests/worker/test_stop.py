"""Stop is real in every phase, and stops nobody else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from uuid import uuid4

import pytest
from redis import Redis

from inference.client import InferenceClient
from inference.coordination import redis_keys
from inference.messages.generation import FinishReason
from inference.worker.attempt.attempts import Attempts, Notice
from inference.worker.threads.cancellation import Cancellation
from tests.worker.scripted import ScriptedWorker, Store, check_whole, text_of, wait_until

MakeWorker = Callable[..., ScriptedWorker]
LONG = "".join(f"abc{n} " for n in range(300))


@pytest.fixture
def client(store: Store, valkey_url: str) -> InferenceClient:
    from tests.worker.scripted import settings

    return InferenceClient(settings(valkey_url))


def test_stopped_while_waiting_is_never_claimed(store: Store, make_worker: MakeWorker, client: InferenceClient) -> None:
    worker = make_worker({"hello": "hi"})
    asked = store.enter("hello")
    client.cancel(asked.id)
    worker.answer()
    assert store.finish_of(asked.id).reason is FinishReason.CANCELLED
    assert worker.backend.forwards_begun == 0


def test_stopped_while_the_prompt_is_read(store: Store, make_worker: MakeWorker, client: InferenceClient) -> None:
    gate = threading.Event()
    worker = make_worker({"x" * 900: "hi"}, backend={"gate": gate})
    asked = store.enter("x" * 900)
    thread = worker.doorbell()
    assert worker.backend.wait_for_forward(1)
    client.cancel(asked.id)
    wait_until(lambda: store.room.standing(asked.id).state == "finished", "the finish does not wait for the engine")
    gate.set()
    thread.join()
    finish = store.finish_of(asked.id)
    assert finish.reason is FinishReason.CANCELLED
    assert finish.usage.completion_tokens == 0
    assert worker.backend.forwards_begun < 15, "reading went on after the stop"
    assert worker.engine.stats().num_free_slots == 4
    assert worker.records == [asked.id]


def test_stopped_while_writing_keeps_what_is_written(
    store: Store, make_worker: MakeWorker, client: InferenceClient
) -> None:
    worker = make_worker({"long": LONG, "short": "untouched"}, backend={"delay_seconds": 0.01})
    long = store.enter("long")
    thread = worker.doorbell()
    wait_until(lambda: text_of(store.read(long.id))[1] != "")
    client.cancel(long.id)
    thread.join()
    log = store.read(long.id)
    check_whole(log)
    written = text_of(log)[1]
    assert LONG.startswith(written)
    finish = store.finish_of(long.id)
    assert finish.reason is FinishReason.CANCELLED
    assert finish.num_chars == len(written) > 0
    assert worker.engine.stats().num_free_slots == 4


def test_a_stop_touches_nobody_elses_answer(store: Store, make_worker: MakeWorker, client: InferenceClient) -> None:
    worker = make_worker({"a": LONG, "b": "xyz " * 60}, backend={"delay_seconds": 0.002})
    stopped, other = store.enter("a"), store.enter("b")
    threads = [worker.doorbell(), worker.doorbell()]
    wait_until(lambda: text_of(store.read(stopped.id))[1] != "")
    client.cancel(stopped.id)
    for thread in threads:
        thread.join()
    assert store.finish_of(stopped.id).reason is FinishReason.CANCELLED
    assert text_of(store.read(other.id))[1] == "xyz " * 60


def test_a_stop_whose_nudge_was_lost_comes_with_the_renewal(store: Store, make_worker: MakeWorker) -> None:
    worker = make_worker({"x" * 900: "hi"}, backend={"delay_seconds": 0.2})
    worker.runtime._cancellation.stop()
    asked = store.enter("x" * 900)
    thread = worker.doorbell()
    assert worker.backend.wait_for_forward(1)
    store.redis.hset(redis_keys.generation(asked.id), "stop", "1")
    thread.join()
    assert store.finish_of(asked.id).reason is FinishReason.CANCELLED
    assert store.finish_of(asked.id).usage.completion_tokens == 0


def test_the_listener_survives_garbage_and_lost_connections(redis: Redis) -> None:
    attempts = Attempts()
    heard: list[Notice] = []
    attempts.tell = lambda generation_id, notice: heard.append(notice)  # type: ignore[method-assign]
    listener = Cancellation(redis, attempts)
    listener.start()
    try:
        wait_until(lambda: redis.publish(redis_keys.STOPS, b"\xff not an id") == 1)
        redis.client_kill_filter(_type="pubsub")
        wait_until(lambda: bool(redis.publish(redis_keys.STOPS, str(uuid4())) and heard))
    finally:
        listener.stop()
    assert set(heard) == {Notice.STOP}
