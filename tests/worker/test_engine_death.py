"""An engine that dies or hangs takes no answer with it, and no answer takes worker after worker with it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from inference.client import InferenceClient, Swept
from inference.messages.generation import FinishReason
from tests.worker.scripted import MODEL, ScriptedWorker, Store, check_whole, ids, settings, text_of, wait_until

ANSWER = "Well, naïve café: 👩\u200d💻 is fine. " + "".join(f"{n} " for n in range(60))


@pytest.fixture
def make_failing(redis: object, valkey_url: str) -> Iterator[Callable[..., ScriptedWorker]]:
    """Workers whose process would end: they are stopped, and their watchdogs asked for it."""
    workers: list[ScriptedWorker] = []

    def make(answers: dict[str, str], **options: Any) -> ScriptedWorker:
        workers.append(ScriptedWorker(valkey_url, answers, **options))
        return workers[-1]

    yield make
    for worker in workers:
        wait_until(lambda worker=worker: worker.exit_codes != [], "the watchdog recycles the process")  # type: ignore[misc]
        worker.stop()
        assert set(worker.exit_codes) == {70}


@pytest.mark.parametrize("forward", [1, 2, 30])
def test_a_dead_engines_answers_go_on_elsewhere_at_once(
    store: Store, make_failing: Callable[..., ScriptedWorker], make_worker: Callable[..., ScriptedWorker], forward: int
) -> None:
    failing = make_failing({"a": ANSWER, "b": ANSWER}, backend={"crash_forwards": {forward}}, LEASE_SECONDS=60)
    asked = [store.enter("a"), store.enter("b")]
    for thread in [failing.doorbell(), failing.doorbell()]:
        thread.join()
    standings = [store.room.standing(one.id) for one in asked]
    assert {standing.state for standing in standings} == {"waiting"}, "nobody waits for a lease to run out"
    assert failing.rings
    other = make_worker({"a": ANSWER, "b": ANSWER}, name="worker-b")
    other.answer()
    for one in asked:
        log = store.read(one.id)
        check_whole(log)
        assert text_of(log) == ("", ANSWER)
        assert [token for event in log.events for token in event.tokens] == ids(ANSWER)


def test_a_request_that_kills_engines_is_failed_in_the_end(
    store: Store, valkey_url: str, make_failing: Callable[..., ScriptedWorker]
) -> None:
    asked = store.enter("poison")
    for number in range(3):
        worker = make_failing({"poison": ANSWER}, name=f"worker-{number}", backend={"crash_forwards": {3}})
        worker.answer()
        assert store.room.standing(asked.id).num_lost == number + 1
    assert store.room.num_waiting(MODEL) == 0
    client = InferenceClient(settings(valkey_url))
    assert client.sweep(asked.id, stop_requested=False) is Swept.ENDED
    finish = store.finish_of(asked.id)
    assert finish.reason is FinishReason.ERROR
    assert finish.error is not None
    assert finish.error.code == "worker_lost"


def test_what_was_claimed_by_another_meanwhile_is_left_alone(
    store: Store, make_failing: Callable[..., ScriptedWorker]
) -> None:
    gate = threading.Event()
    failing = make_failing({"a": ANSWER}, backend={"crash_forwards": {1}, "gate": gate})
    asked = store.enter("a")
    thread = failing.doorbell()
    assert failing.backend.wait_for_forward(1)
    store.lose_lease(asked.id)
    claim = store.room.claim(MODEL, "worker-b")
    assert claim is not None
    gate.set()
    thread.join()
    standing = store.room.standing(asked.id)
    assert (standing.state, standing.worker, standing.num_lost) == ("leased", "worker-b", 1)


def test_a_hung_engines_answers_go_on_elsewhere_before_the_process_ends(
    store: Store, make_failing: Callable[..., ScriptedWorker], make_worker: Callable[..., ScriptedWorker]
) -> None:
    gate = threading.Event()
    gate.set()
    hanging = make_failing(
        {"a": ANSWER}, backend={"gate": gate, "delay_seconds": 0.005}, WORKER_HANG_SECONDS=1, LEASE_SECONDS=60
    )
    asked = store.enter("a")
    thread = hanging.doorbell()
    wait_until(lambda: text_of(store.read(asked.id))[1] != "")
    gate.clear()
    wait_until(lambda: hanging.exit_codes != [])
    standing = store.room.standing(asked.id)
    assert (standing.state, standing.num_lost) == ("waiting", 1)
    thread.join(5)
    assert not thread.is_alive(), "it waits no longer for the hung engine"
    other = make_worker({"a": ANSWER}, name="worker-b")
    other.answer()
    assert text_of(store.read(asked.id)) == ("", ANSWER)
    check_whole(store.read(asked.id))
