"""An order to serve another model: whatever happens, nobody's answer is lost and the worker goes or serves on."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from redis import Redis

from inference import catalog
from inference.config import InferenceConfig
from inference.coordination.registry import Registry
from inference.coordination.swap_orders import Orders
from inference.errors import ConfigError, ModelFileError
from inference.messages.cards import ModelCard, WorkerCard
from inference.messages.swap import SwapOrder, SwapReport
from inference.worker.process.reexec import Handover, handover_of
from inference.worker.process.swap_model import Swapping, find_servable
from tests.worker.scripted import MODEL, ScriptedWorker, Store, check_whole, settings, text_of, wait_until

MakeWorker = Callable[..., ScriptedWorker]
LONG = "".join(f"{n}. a long answer " for n in range(14))
OTHER = "other-model"


def entry(config: InferenceConfig, model: str) -> catalog.CatalogEntry:
    """What a worker finds that has every model but one."""
    if model == "broken":
        raise ModelFileError("The model file /srv/broken.gguf is cut short.")
    return catalog.CatalogEntry(name=model, title=model, source=catalog.Source(path="x"), context_tokens=512)


class Swapped:
    """A scripted worker with its swapping, whose heartbeat the test drives."""

    def __init__(self, redis: Redis, worker: ScriptedWorker, **options: Any) -> None:
        self.worker = worker
        self.name = worker.config.worker_name
        self.registry, self.orders = Registry(redis), Orders(redis)
        self.num_goes = 0
        options = {"find": entry, "settle_seconds": 0.0, **options}
        self.swapping = Swapping(
            worker.config,
            MODEL,
            orders=self.orders,
            room=worker.runtime.bench.room,
            registry=self.registry,
            announce=self.announce,
            go=self._go,
            **options,
        )
        self.swapping.runtime = worker.runtime

    def _go(self) -> None:
        self.num_goes += 1

    def announce(self) -> None:
        announce(
            self.registry,
            self.name,
            state="ready" if self.worker.runtime.accepts else "draining",
            next_model=self.swapping.next_model,
        )

    def order(self, model: str = OTHER, timeout_seconds: float = 20.0) -> SwapOrder:
        order = SwapOrder(id=uuid4(), model=model, timeout_seconds=timeout_seconds)
        assert self.orders.give(self.name, order)
        self.swapping.look()
        return order

    def report(self, order: SwapOrder) -> SwapReport:
        report = self.orders.report_of(order.id)
        assert report is not None
        return report

    def end_of(self, order: SwapOrder) -> SwapReport:
        wait_until(lambda: self.report(order).is_end, "an end of the order")
        wait_until(lambda: self.orders.current(self.name) is None, "the order's being taken away")
        return self.report(order)

    def wait_for_state(self, order: SwapOrder, state: str) -> None:
        wait_until(lambda: self.report(order).state == state, f"{state}: {self.report(order)}")


def announce(registry: Registry, name: str, *, model: str = MODEL, **facts: Any) -> None:
    card = ModelCard(name=model, title=model, architecture="none", context_tokens=512, prompt_kit="none")
    now = time.time()
    registry.announce(
        WorkerCard(
            name=name, model=card, num_slots=4, num_free_slots=4, device="test", started_at=now, seen_at=now, **facts
        )
    )


@pytest.fixture
def swapped(redis: Redis, make_worker: MakeWorker) -> Iterator[Callable[..., Swapped]]:
    made: list[Swapped] = []

    def make(
        answers: dict[str, str] | None = None,
        name: str = "worker-a",
        swapping: dict[str, Any] | None = None,
        **options: Any,
    ) -> Swapped:
        made.append(Swapped(redis, make_worker(answers or {}, name=name, **options), **swapping or {}))
        made[-1].announce()
        return made[-1]

    yield make
    for one in made:
        one.swapping.end()


def test_last_worker_of_its_model_answers_all_that_waits_before_it_goes(
    store: Store, swapped: Callable[..., Swapped]
) -> None:
    one = swapped({"a": LONG, "b": LONG}, backend={"delay_seconds": 0.002, "num_slots": 1})
    asked = [store.enter("a"), store.enter("b")]
    thread = one.worker.doorbell()
    order = one.order()
    one.wait_for_state(order, "waiting")
    assert one.registry.workers()[0].next_model == OTHER
    assert one.registry.workers()[0].state == "ready", "it still answers"
    late = store.enter("a")  # chosen by a web node before it read the card
    thread.join()
    one.worker.answer()
    wait_until(lambda: one.num_goes == 1)
    assert not one.worker.runtime.accepts
    for generation in (*asked, late):
        check_whole(store.read(generation.id))
        assert text_of(store.read(generation.id))[1] == LONG
    assert one.swapping.going == order


def test_worker_whose_model_another_serves_drains_and_hands_on(store: Store, swapped: Callable[..., Swapped]) -> None:
    one = swapped({"a": LONG}, backend={"delay_seconds": 0.005})
    announce(one.registry, "worker-b")
    asked, waiting = store.enter("a"), None
    thread = one.worker.doorbell()
    wait_until(lambda: text_of(store.read(asked.id))[1] != "")
    waiting = store.enter("a")
    one.order()
    wait_until(lambda: one.num_goes == 1)
    thread.join()
    assert {store.room.standing(generation.id).state for generation in (asked, waiting)} == {"waiting"}
    assert store.room.standing(asked.id).num_lost == 0
    assert one.worker.rings == [MODEL]


def test_of_two_that_leave_at_once_the_waiting_are_answered(store: Store, swapped: Callable[..., Swapped]) -> None:
    """They may not both count on the other: each says that it leaves before it looks."""
    both_check = threading.Barrier(2)

    def find(config: InferenceConfig, model: str) -> catalog.CatalogEntry:
        both_check.wait(20)
        return entry(config, model)

    pair = [swapped({"a": "x"}, name=name, swapping={"find": find}) for name in ("worker-a", "worker-b")]
    asked = store.enter("a")
    orders = [each.order() for each in pair]
    told = [(each.orders, order.id) for each, order in zip(pair, orders, strict=True)]
    wait_until(lambda: any(r is not None and r.state == "waiting" for r in (o.report_of(id_) for o, id_ in told)))
    assert sum(each.num_goes for each in pair) < 2
    for each in pair:
        each.worker.answer()
    wait_until(lambda: all(each.num_goes == 1 for each in pair))
    check_whole(store.read(asked.id))


def test_other_worker_that_is_gone_after_the_drain_is_not_counted_on(
    redis: Redis, store: Store, swapped: Callable[..., Swapped]
) -> None:
    one = swapped({"a": LONG}, backend={"delay_seconds": 0.005}, DRAIN_SECONDS=30)
    announce(one.registry, "worker-b")
    asked = store.enter("a")
    thread = one.worker.doorbell()
    wait_until(lambda: text_of(store.read(asked.id))[1] != "")
    order = one.order()
    one.wait_for_state(order, "draining")
    left = store.enter("a")
    one.registry.withdraw("worker-b")
    one.wait_for_state(order, "waiting")
    assert one.worker.runtime.accepts
    assert one.worker.rings == [MODEL], "bells that rang during the drain were dropped"
    thread.join()
    one.worker.answer()
    wait_until(lambda: one.num_goes == 1)
    check_whole(store.read(left.id))


def test_time_that_is_up_calls_the_swap_off_and_the_worker_accepts_again(
    store: Store, swapped: Callable[..., Swapped]
) -> None:
    one = swapped({"a": "hello"})
    asked = store.enter("a")
    report = one.end_of(one.order(timeout_seconds=0.1))
    assert report.state == "called_off"
    assert MODEL in report.sentence and "nobody else serves" in report.sentence
    assert one.swapping.next_model == ""
    assert one.num_goes == 0
    one.worker.answer()
    assert text_of(store.read(asked.id))[1] == "hello"


@pytest.mark.parametrize(
    ("model", "sentence"),
    [("broken", "is cut short"), (MODEL, "serves scripted already"), ("", "No model was named")],
)
def test_model_that_cannot_be_served_is_refused_in_the_workers_words(
    store: Store, swapped: Callable[..., Swapped], model: str, sentence: str
) -> None:
    one = swapped({"a": "hello"})
    report = one.end_of(one.order(model))
    assert report.state == "refused"
    assert sentence in report.sentence
    asked = store.enter("a")
    one.worker.answer()
    assert text_of(store.read(asked.id))[1] == "hello"


def test_old_model_answers_while_the_new_file_is_fetched(store: Store, swapped: Callable[..., Swapped]) -> None:
    fetched = threading.Event()

    def find(config: InferenceConfig, model: str) -> catalog.CatalogEntry:
        assert fetched.wait(20)
        return entry(config, model)

    one = swapped({"a": "hello"}, swapping={"find": find})
    order = one.order()
    one.wait_for_state(order, "checking")
    asked = store.enter("a")
    one.worker.answer()
    assert text_of(store.read(asked.id))[1] == "hello"
    assert one.swapping.next_model == "", "nobody is sent away before the new model is sure to be there"
    fetched.set()
    wait_until(lambda: one.num_goes == 1)


def test_second_order_is_refused_while_one_is_under_way(
    redis: Redis, store: Store, swapped: Callable[..., Swapped]
) -> None:
    one = swapped({"a": "hello"})
    store.enter("a")
    first = one.order()
    second = SwapOrder(id=uuid4(), model="third", timeout_seconds=20.0)
    assert not one.orders.give(one.name, second)
    redis.flushall()  # Redis forgot the first; the worker has not
    announce(one.registry, "worker-b")
    assert one.orders.give(one.name, second)
    one.swapping.look()
    assert one.end_of(second).state == "refused"
    wait_until(lambda: one.num_goes == 1)
    assert one.swapping.going == first


def test_order_left_by_a_dead_predecessor_is_told_as_failed(swapped: Callable[..., Swapped]) -> None:
    one = swapped()
    order = SwapOrder(id=uuid4(), model=OTHER, timeout_seconds=20.0)
    assert one.orders.give(one.name, order)
    one.orders.report(SwapReport(order=order.id, state="loading", model=OTHER))
    one.swapping.look()
    report = one.end_of(order)
    assert report.state == "failed"
    assert "ended in the middle of the swap" in report.sentence


def test_stop_during_a_swap_ends_it(store: Store, swapped: Callable[..., Swapped]) -> None:
    one = swapped({"a": "hello"})
    store.enter("a")
    order = one.order()
    one.wait_for_state(order, "waiting")
    one.swapping.end()
    assert one.end_of(order).state == "called_off"
    one.worker.runtime.accepts = False
    one.swapping.look()
    assert one.num_goes == 0
    assert not one.worker.runtime.accepts, "a worker that ends must not begin to accept again"


def test_worker_that_still_loads_refuses(swapped: Callable[..., Swapped]) -> None:
    one = swapped()
    one.swapping.runtime = None
    assert "still loading" in one.end_of(one.order()).sentence


def test_worker_with_queues_of_its_own_refuses(swapped: Callable[..., Swapped]) -> None:
    one = swapped(swapping={"has_own_queues": True})
    assert "-Q" in one.end_of(one.order()).sentence


@pytest.mark.parametrize(("failure", "state"), [("", "ready"), ("It could not be loaded.", "failed")])
def test_next_image_ends_the_order_of_the_one_before(
    redis: Redis, swapped: Callable[..., Swapped], failure: str, state: str
) -> None:
    order = SwapOrder(id=uuid4(), model=MODEL, timeout_seconds=20.0)
    one = swapped(swapping={"order_id": order.id})
    one.orders.give(one.name, order)
    one.orders.report(SwapReport(order=order.id, state="loading", model=MODEL))
    redis.pexpire("{smolfleet}:swap:worker-a", 5_000)
    one.swapping.look()
    assert redis.pttl("{smolfleet}:swap:worker-a") > 30_000, "an order under way does not expire"
    one.swapping.has_loaded(failure=failure)
    report = one.end_of(order)
    assert (report.state, report.sentence) == (state, failure)


def test_handover_survives_the_environment_and_garbage_is_refused(valkey_url: str) -> None:
    handover = Handover(order=uuid4(), previous="/srv/a model,1.gguf", failure="It ‘failed’.\nBadly.")
    config = settings(valkey_url, WORKER_HANDOVER=msgspec.json.encode(handover).decode())
    assert handover_of(config) == handover
    assert handover_of(dataclasses.replace(config, handover="")) is None
    with pytest.raises(ConfigError, match="WORKER_HANDOVER"):
        handover_of(dataclasses.replace(config, handover="{"))


def test_finding_checks_the_file_itself(valkey_url: str, tmp_path: Any) -> None:
    config = settings(valkey_url)
    with pytest.raises(ConfigError, match="MODEL must be one of"):
        find_servable(config, "no-such-model")
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF but not really")
    with pytest.raises(ModelFileError):
        find_servable(config, str(bad))
