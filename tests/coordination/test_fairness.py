"""Who is next: fair between users by tokens, aged priorities, prefixes, positions."""

from __future__ import annotations

import dataclasses
from collections import Counter, deque

import redis as redis_py
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inference.config import InferenceConfig
from inference.coordination import redis_keys
from inference.coordination.event_log import EventLog
from inference.coordination.registry import Registry
from inference.coordination.waiting_room import Claim, Later, WaitingRoom
from inference.messages.generation import GenerationRequest
from tests.coordination.conftest import MODEL, finish, make_request, worker_card


def next_claim(room: WaitingRoom, worker: str = "w0") -> Claim:
    claim = room.claim(MODEL, worker)
    assert isinstance(claim, Claim)
    return claim


def make_older(redis: redis_py.Redis, request: GenerationRequest, ms: int) -> None:
    """Let the request have waited `ms` longer."""
    key = redis_keys.generation(request.id)
    for name in ("waiting", "entered"):
        redis.hincrby(key, name, -ms)
    redis.zincrby(redis_keys.order(MODEL), -ms, str(request.id))
    for zset in (f"{redis_keys.PREFIX}room:{MODEL}:later", f"{redis_keys.PREFIX}room:{MODEL}:queue:{request.user_key}"):
        if redis.zscore(zset, str(request.id)) is not None:
            redis.zincrby(zset, -ms, str(request.id))


def test_hundred_requests_delay_another_users_one_by_at_most_one_turn(room: WaitingRoom) -> None:
    for _ in range(100):
        room.enter(make_request("aaa"))
    one = make_request("zoe")
    room.enter(one)
    assert room.standing(one.id).position <= 2
    assert one.id in [next_claim(room).request.id for _ in range(2)]


@settings(max_examples=25, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    num_before=st.integers(0, 12),
    answers=st.lists(st.sampled_from([1, 50, 500, 5_000]), min_size=12, max_size=12),
    past=st.sampled_from([0, 10, 20_000]),
    num_slots=st.integers(1, 4),
)
def test_turns_already_taken_never_add_up_to_a_second_turn(
    redis: redis_py.Redis, config: InferenceConfig, num_before: int, answers: list[int], past: int, num_slots: int
) -> None:
    """Whatever answers cost in truth, and however much the one who comes later used before."""
    redis.flushall()
    room, log = WaitingRoom(redis, config), EventLog(redis, config)
    if past:
        room.enter(make_request("zoe"))
        claim = next_claim(room)
        log.finish(claim.request.id, claim.ticket, finish(completion_tokens=past))
    for _ in range(100):
        room.enter(make_request("aaa"))
    running: deque[Claim] = deque()

    def turn(cost: int) -> str:
        while len(running) >= num_slots:
            done = running.popleft()
            log.finish(done.request.id, done.ticket, finish(completion_tokens=cost))
        running.append(next_claim(room))
        return running[-1].request.user_key

    for cost in answers[:num_before]:
        turn(cost)
    room.enter(make_request("zoe"))
    users = [turn(cost) for cost in reversed(answers)]
    assert "zoe" in users[:2]


def test_tokens_not_turns_are_shared_equally(room: WaitingRoom, log: EventLog) -> None:
    """Two users with a full queue each; one's answers are ten times as long."""
    served: Counter[str] = Counter()
    for _ in range(100):
        room.enter(make_request("long"))
        room.enter(make_request("short"))
    for _ in range(66):
        claim = next_claim(room)
        tokens = 2_000 if claim.request.user_key == "long" else 200
        served[claim.request.user_key] += 100 + 2 * tokens
        log.finish(claim.request.id, claim.ticket, finish(completion_tokens=tokens))
    assert abs(served["long"] - served["short"]) <= 3 * 4_100


def test_being_away_earns_nothing(room: WaitingRoom, log: EventLog) -> None:
    for _ in range(20):
        room.enter(make_request("busy"))
        claim = next_claim(room)
        log.finish(claim.request.id, claim.ticket, finish(completion_tokens=1_000))
    for _ in range(10):
        room.enter(make_request("busy"))
        room.enter(make_request("newcomer"))
    first = [next_claim(room).request.user_key for _ in range(10)]
    assert 4 <= first.count("busy") <= 6


def test_within_a_user_the_oldest_is_first(room: WaitingRoom) -> None:
    requests = sorted((make_request() for _ in range(5)), key=lambda r: r.id)  # as UUIDv7 sorts within a millisecond
    for request in requests:
        room.enter(request)
    assert [next_claim(room).request.id for _ in requests] == [request.id for request in requests]


def test_urgent_goes_first_and_the_patient_one_ages(redis: redis_py.Redis, room: WaitingRoom) -> None:
    patient = make_request("bulk", priority=2)
    room.enter(patient)
    for _ in range(3):
        room.enter(make_request("ann"))
    assert room.standing(patient.id).position == 4
    assert next_claim(room).request.user_key == "ann"
    make_older(redis, patient, 61_000)
    assert "bulk" in [next_claim(room).request.user_key for _ in range(2)]


def test_patient_one_is_served_when_nobody_else_waits(room: WaitingRoom) -> None:
    less, more = make_request("bulk", priority=9), make_request("bulk", priority=3)
    room.enter(less)
    room.enter(more)
    assert [next_claim(room).request.id for _ in range(2)] == [more.id, less.id]


def test_endless_newcomers_starve_nobody(room: WaitingRoom, log: EventLog) -> None:
    """More newcomers than one claim looks at, all with names that sort before the one who waits."""
    waits = make_request("zzz")
    for n in range(40):
        room.enter(make_request(f"a{n}"))
    room.enter(waits)
    for n in range(200):
        claim = next_claim(room)
        if claim.request.id == waits.id:
            return
        room.enter(make_request(f"b{n}"))
    raise AssertionError("never served")


def test_conversation_waits_a_little_for_the_worker_that_holds_its_prefix(
    redis: redis_py.Redis, config: InferenceConfig, registry: Registry
) -> None:
    room = WaitingRoom(redis, dataclasses.replace(config, prefix_wait_ms=60_000))
    log = EventLog(redis, config)
    for name in ("w0", "w1"):
        registry.announce(worker_card(name))
    room.enter(make_request(conversation_key="c"))
    first = next_claim(room, "w0")
    log.finish(first.request.id, first.ticket, finish())
    again = make_request(conversation_key="c")
    room.enter(again)
    later = room.claim(MODEL, "w1")
    assert isinstance(later, Later)
    assert 0 < later.wait_ms <= 60_000
    other = make_request()
    room.enter(other)
    assert next_claim(room, "w1").request.id == other.id, "others do not wait with it"
    assert next_claim(room, "w0").request.id == again.id


def test_nobody_waits_for_a_worker_that_is_gone_or_draining_or_too_long(
    redis: redis_py.Redis, config: InferenceConfig, registry: Registry
) -> None:
    room = WaitingRoom(redis, dataclasses.replace(config, prefix_wait_ms=60_000))
    registry.announce(worker_card("w0"))

    def return_to(conversation: str) -> GenerationRequest:
        room.enter(make_request(conversation_key=conversation))
        next_claim(room, "w0")
        request = make_request(conversation_key=conversation)
        room.enter(request)
        return request

    long_waited = return_to("a")
    make_older(redis, long_waited, 60_001)
    assert next_claim(room, "w1").request.id == long_waited.id
    draining = return_to("b")
    registry.announce(worker_card("w0", state="draining"))
    assert next_claim(room, "w1").request.id == draining.id
    gone = return_to("c")
    registry.withdraw("w0")
    assert next_claim(room, "w1").request.id == gone.id


def test_prefix_here_is_preferred_among_equals(
    redis: redis_py.Redis, config: InferenceConfig, registry: Registry
) -> None:
    room = WaitingRoom(redis, dataclasses.replace(config, prefix_wait_ms=60_000))
    redis.set(f"{redis_keys.PREFIX}prefix:{MODEL}:held", "w0")
    room.enter(make_request("ann"))
    held = make_request("bob", conversation_key="held")
    room.enter(held)
    assert next_claim(room, "w0").request.id == held.id


@settings(max_examples=20, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(users=st.lists(st.sampled_from(["ann", "bob", "cid", "dan"]), min_size=1, max_size=12))
def test_positions_are_the_order_of_claims(redis: redis_py.Redis, config: InferenceConfig, users: list[str]) -> None:
    redis.flushall()
    room = WaitingRoom(redis, config)
    requests = [make_request(user) for user in users]
    for request in requests:
        room.enter(request)
    positions = {request.id: room.standing(request.id).position for request in requests}
    order = {next_claim(room).request.id: place for place in range(1, len(requests) + 1)}
    # Among users that stand alike, those who entered within one millisecond may change places.
    assert all(abs(positions[i] - place) < len(set(users)) for i, place in order.items())
    assert positions[next(iter(order))] <= len(set(users))


def test_estimate_comes_from_service_times_and_live_slots(
    redis: redis_py.Redis, room: WaitingRoom, log: EventLog, registry: Registry
) -> None:
    request = make_request()
    room.enter(request)
    assert room.standing(request.id).eta_seconds is None
    claim = next_claim(room)
    redis.hincrby(redis_keys.generation(request.id), "claimed", -8_000)
    log.finish(request.id, claim.ticket, finish())
    registry.announce(worker_card("w0"))
    waits = make_request()
    room.enter(waits)
    eta = room.standing(waits.id).eta_seconds
    assert eta is not None
    assert 1.9 < eta < 3.0  # one of four slots comes free each two seconds
