"""The threads beside the answers: heartbeat, renewal, watchdog, seats."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from uuid import UUID

import msgspec
import prometheus_client
import pytest
import redis as redis_py
from redis import Redis

from inference.coordination import redis_keys
from inference.coordination.lease import Renewal as Renewed
from inference.coordination.registry import Registry
from inference.coordination.waiting_room import Claim
from inference.messages.cards import ModelCard, WorkerCard
from inference.prompt.kit import PromptKit
from inference.worker.attempt.attempts import Attempts, Notice
from inference.worker.threads.heartbeat import Heartbeat
from inference.worker.threads.lease_renewal import Renewal
from inference.worker.threads.watchdog import HUNG_EXIT_CODE, Watchdog
from tests.worker.scripted import CONTEXT_TOKENS, MODEL, ScriptedWorker, Store, kit, request, settings, wait_until

MakeWorker = Callable[..., ScriptedWorker]


def card(kit_key: str = "") -> WorkerCard:
    model = ModelCard(name=MODEL, title="Scripted", architecture="", context_tokens=64, prompt_kit=kit_key)
    return WorkerCard(
        name="worker-a", model=model, num_slots=1, num_free_slots=1, device="", started_at=0, seen_at=time.time()
    )


def test_the_heartbeat_tells_and_withdraws_the_card(redis: Redis) -> None:
    registry = Registry(redis)
    heartbeat = Heartbeat(registry, card)
    heartbeat.start()
    wait_until(lambda: [worker.name for worker in registry.workers()] == ["worker-a"])
    heartbeat.withdraw()
    assert registry.workers() == []


def test_the_heartbeat_stores_a_kit_that_redis_forgot(redis: Redis) -> None:
    registry = Registry(redis)
    data = kit().to_bytes()
    key = registry.store_kit(data)
    heartbeat = Heartbeat(registry, lambda: card(key))
    heartbeat.kit = data
    redis.flushall()
    heartbeat.tick()
    stored = registry.kit(key)
    assert stored is not None
    assert PromptKit.from_bytes(stored) == kit()


def test_leases_are_renewed_with_one_call_and_the_answers_go_to_their_attempts(store: Store, valkey_url: str) -> None:
    attempts = Attempts()
    under_way = []
    for question in ("kept", "lost", "stopped"):
        store.enter(question)
        claim = store.room.claim(MODEL, "worker-a")
        assert isinstance(claim, Claim)
        under_way.append(attempts.begin(claim))
    kept, lost, stopped = under_way
    store.lose_lease(lost.generation_id)
    store.redis.hset(redis_keys.generation(stopped.generation_id), "stop", "1")
    renewal = Renewal(store.leases, attempts, settings(valkey_url))
    renewal.tick()
    renewal.tick()
    assert kept.inbox.empty()
    assert lost.inbox.get_nowait() is Notice.LOST
    assert stopped.inbox.get_nowait() is Notice.STOP
    assert lost.inbox.empty(), "told once"


def test_a_lease_that_cannot_be_renewed_in_time_is_given_up(store: Store, valkey_url: str) -> None:
    class Unreachable:
        def renew(self, held: Sequence[tuple[UUID, str]]) -> list[Renewed]:
            raise redis_py.ConnectionError

    attempts = Attempts()
    attempt = attempts.begin(Claim(request("hello"), "ticket", "mark", 0))
    renewal = Renewal(Unreachable(), attempts, settings(valkey_url, LEASE_SECONDS=1))  # type: ignore[arg-type]
    with pytest.raises(redis_py.ConnectionError):
        renewal.tick()
    assert attempt.inbox.empty()
    attempt.renewed_at -= 1.1
    with pytest.raises(redis_py.ConnectionError):
        renewal.tick()
    assert attempt.inbox.get_nowait() is Notice.LOST


def test_a_hanging_or_dead_engine_ends_the_process(make_worker: MakeWorker) -> None:
    stats = make_worker().engine.stats()
    done: list[object] = []

    def look(**changes: object) -> list[object]:
        done.clear()
        looking = Watchdog(lambda: replace(stats, **changes), done.append, 10, end_process=done.append)  # type: ignore[arg-type]
        looking.tick()
        return done

    assert look() == []
    assert look(seconds_since_step=9.0) == []
    assert look(seconds_since_step=11.0) == [Notice.GIVE_UP, HUNG_EXIT_CODE]
    assert look(is_alive=False) == [Notice.GIVE_UP, HUNG_EXIT_CODE]


def test_the_process_ends_although_nobody_can_be_told(make_worker: MakeWorker) -> None:
    stats = replace(make_worker().engine.stats(), is_alive=False)
    codes: list[int] = []

    def fails(notice: Notice) -> None:
        raise RuntimeError(notice)

    with pytest.raises(RuntimeError):
        Watchdog(lambda: stats, fails, 10, end_process=codes.append).tick()
    assert codes == [HUNG_EXIT_CODE]


def test_faults_in_a_row_end_the_process_and_a_few_among_much_good_do_not(make_worker: MakeWorker) -> None:
    healthy = make_worker().engine.stats()
    seen = [healthy]
    now = [0.0]
    done: list[object] = []
    watchdog = Watchdog(lambda: seen[0], done.append, 10, end_process=done.append, clock=lambda: now[0])

    def after(seconds: float, *, faults: int, tokens: int) -> list[object]:
        now[0] += seconds
        seen[0] = replace(
            seen[0],
            num_bad_rows=seen[0].num_bad_rows + faults,
            num_decoded_tokens=seen[0].num_decoded_tokens + tokens,
        )
        watchdog.tick()
        return done

    assert after(1, faults=7, tokens=0) == []
    assert after(1, faults=20, tokens=5_000) == [], "a poisonous prompt, again and again"
    for _ in range(20):
        assert after(30, faults=3, tokens=50) == [], "far apart"
    assert after(1, faults=8, tokens=50) == [Notice.HAND_ON, HUNG_EXIT_CODE]


def test_no_more_is_claimed_than_there_are_slots(make_worker: MakeWorker) -> None:
    worker = make_worker(backend={"num_slots": 2})
    with worker.runtime.seat() as first, worker.runtime.seat() as second, worker.runtime.seat() as third:
        assert (first, second, third) == (True, True, False)
    with worker.runtime.seat() as again:
        assert again
    worker.runtime.accepts = False
    with worker.runtime.seat() as refused:
        assert not refused


def test_nothing_is_claimed_with_a_dead_engine(store: Store, make_worker: MakeWorker) -> None:
    worker = make_worker({"hello": "hi"})
    worker.runtime._watchdog.stop()
    assert worker.engine.stop(10)
    asked = store.enter("hello")
    worker.answer()
    assert store.room.standing(asked.id).state == "waiting"
    assert len(store.read(asked.id).events) == 0


def test_a_worker_waits_for_a_prefix_elsewhere_and_then_answers(store: Store, make_worker: MakeWorker) -> None:
    """Another live worker holds the conversation: this one asks again instead of giving up."""
    answered = make_worker({"one": "first", "two": "second"}, name="worker-b", PREFIX_WAIT_MS=300)
    asked = msgspec.structs.replace(request("one"), conversation_key="talk")
    assert answered.runtime.bench.room.enter(asked)
    answered.answer()
    holder = msgspec.structs.replace(card(), name="worker-b")
    Registry(store.redis).announce(holder)
    worker = make_worker({"one": "first", "two": "second"}, PREFIX_WAIT_MS=300)
    following = msgspec.structs.replace(request("two"), conversation_key="talk")
    assert worker.runtime.bench.room.enter(following)
    worker.answer()
    assert store.read(following.id).text("content") == "second"
    assert store.finish_of(following.id).worker == "worker-a"


def test_the_gauges_tell_what_the_engine_says_of_itself(store: Store, make_worker: MakeWorker) -> None:
    worker = make_worker({"hello": "hi"})
    store.enter("hello")
    worker.answer()
    worker.runtime.observe()

    def value(name: str, **labels: str) -> float | None:
        return prometheus_client.REGISTRY.get_sample_value(f"smolfleet_{name}", {"model": MODEL, **labels})

    stats = worker.engine.stats()
    assert value("pool_tokens") == stats.pool_tokens == 4 * CONTEXT_TOKENS
    assert value("held_tokens") == stats.num_held_tokens > 0
    assert value("decoded_tokens") == stats.num_decoded_tokens == len("hi") + 1
    assert value("prefilled_tokens") == stats.num_prefilled_tokens
    for name in ("preemptions", "evictions", "host_restored_tokens", "host_cache_bytes", "bad_rows", "failed_forwards"):
        assert value(name) == 0, name
