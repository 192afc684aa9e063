"""A worker that stops loses nothing: answers end in time or go on elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from inference.messages.generation import EventKind
from tests.worker.scripted import MODEL, ScriptedWorker, Store, check_whole, text_of, wait_until

MakeWorker = Callable[..., ScriptedWorker]
LONG = "".join(f"{n}. a long answer 👩‍💻 " for n in range(40))


def test_answers_may_end_while_it_drains(store: Store, make_worker: MakeWorker) -> None:
    worker = make_worker({"a": "one " * 50, "b": "two"}, backend={"delay_seconds": 0.002})
    first = store.enter("a")
    thread = worker.doorbell()
    assert worker.backend.wait_for_forward(3)
    second = store.enter("b")
    worker.runtime.drain(60)
    thread.join()
    assert text_of(store.read(first.id))[1] == "one " * 50
    assert store.room.standing(second.id).state == "waiting", "a draining worker claims nothing"


def test_what_does_not_end_in_time_goes_on_elsewhere(store: Store, make_worker: MakeWorker) -> None:
    worker = make_worker({"a": LONG}, backend={"delay_seconds": 0.005})
    asked, later = store.enter("a"), None
    thread = worker.doorbell()
    wait_until(lambda: text_of(store.read(asked.id))[1] != "")
    later = store.enter("a")
    worker.runtime.drain(0)
    thread.join()
    standing = store.room.standing(asked.id)
    assert (standing.state, standing.num_lost) == ("waiting", 0)
    assert worker.rings == [MODEL]
    part = text_of(store.read(asked.id))[1]
    assert LONG.startswith(part)
    assert part != LONG
    claim = store.room.claim(MODEL, "peek")
    assert claim is not None
    assert claim.request.id == asked.id, "it goes to the front"
    assert store.room.release(asked.id, claim.ticket)
    other = make_worker({"a": LONG}, name="worker-b")
    other.answer()
    for generation in (asked, later):
        check_whole(store.read(generation.id))
        assert text_of(store.read(generation.id))[1] == LONG
    started = [event.worker for event in store.read(asked.id).events if event.kind is EventKind.STARTED]
    assert started == ["worker-a", "worker-b"]


def test_a_second_signal_shortens_the_drain(store: Store, make_worker: MakeWorker) -> None:
    gate = threading.Event()
    worker = make_worker({"a": LONG}, backend={"gate": gate})
    asked = store.enter("a")
    thread = worker.doorbell()
    assert worker.backend.wait_for_forward(1)
    threading.Timer(0.3, gate.set).start()
    began = time.monotonic()
    worker.runtime.drain(600, is_hurried=lambda: True)
    thread.join()
    assert time.monotonic() - began < 10
    assert store.room.standing(asked.id).state in ("waiting", "finished")


def test_an_engine_that_stops_hands_its_answers_on(store: Store, make_worker: MakeWorker) -> None:
    worker = make_worker({"a": LONG}, backend={"delay_seconds": 0.005})
    worker.runtime._watchdog.stop()
    asked = store.enter("a")
    thread = worker.doorbell()
    wait_until(lambda: text_of(store.read(asked.id))[1] != "")
    worker.engine.stop(10)
    worker.runtime.accepts = False
    thread.join()
    assert store.room.standing(asked.id).state == "waiting"


def test_a_claim_during_the_drain_is_handed_on_too(store: Store, make_worker: MakeWorker) -> None:
    """The drain tells an attempt whose claim was under way when it began."""
    worker = make_worker({"a": LONG}, backend={"delay_seconds": 0.005})
    claim_under_way, go_on = threading.Event(), threading.Event()
    claim = worker.runtime.bench.room.claim

    def slow_claim(model: str, name: str) -> object:
        claim_under_way.set()
        assert go_on.wait(10)
        return claim(model, name)

    worker.runtime.bench.room.claim = slow_claim  # type: ignore[method-assign,assignment]
    asked = store.enter("a")
    thread = worker.doorbell()
    assert claim_under_way.wait(10)
    draining = threading.Thread(target=worker.runtime.drain, args=(0,))
    draining.start()
    go_on.set()
    draining.join()
    thread.join()
    assert store.room.standing(asked.id).state == "waiting"
