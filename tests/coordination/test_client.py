"""The client as a whole, the registry, and what happens when Redis cannot be reached."""

from __future__ import annotations

import dataclasses
import json
import socket
import time
from collections.abc import Callable, Iterator
from uuid import uuid4

import msgspec
import pytest
import redis as redis_py

from inference import celery
from inference.client import AsyncInferenceClient, CheckedPrompt, InferenceClient, Swept
from inference.config import InferenceConfig
from inference.coordination import redis_keys
from inference.coordination.event_log import EventLog
from inference.coordination.lease import Leases
from inference.coordination.registry import Registry
from inference.coordination.waiting_room import Claim, WaitingRoom
from inference.errors import EventsExpired, ModelNotServed, PromptTooLong, StoreUnavailable
from inference.messages.generation import ChatMessage, Finish, FinishReason, Role, SamplingParams
from tests.coordination.conftest import MODEL, delta, finish, make_request, worker_card
from tests.worker.scripted import kit

SITE = f"{redis_keys.CELERY_PREFIX}{celery.SITE_QUEUE}"


def tasks_in(redis: redis_py.Redis, name: str) -> list[str]:
    return [json.loads(data)["headers"]["task"] for data in redis.lrange(name, 0, -1)]


def claimed(room: WaitingRoom) -> Claim:
    claim = room.claim(MODEL, "w0")
    assert isinstance(claim, Claim)
    return claim


def test_submit_enters_and_rings_and_twice_is_once(redis: redis_py.Redis, client: InferenceClient) -> None:
    request = make_request()
    client.submit(request)
    client.submit(request)
    standing = client.standing(request.id)
    assert (standing.state, standing.position, standing.num_waiting) == ("waiting", 1, 1)
    assert set(tasks_in(redis, redis_keys.bells(MODEL))) == {celery.GENERATE_TASK}


def test_cancel_of_a_waiting_one_ends_it_and_asks_to_record(redis: redis_py.Redis, client: InferenceClient) -> None:
    request = make_request()
    client.submit(request)
    client.cancel(request.id)
    client.cancel(request.id)
    end = client.read(request.id).finish
    assert end is not None
    assert end.reason is FinishReason.CANCELLED
    assert tasks_in(redis, SITE) == [celery.RECORD_TASK]


def test_cancel_of_a_leased_one_tells_its_worker(
    redis: redis_py.Redis, client: InferenceClient, room: WaitingRoom, leases: Leases, log: EventLog
) -> None:
    request = make_request()
    client.submit(request)
    claim = claimed(room)
    stops = redis.pubsub(ignore_subscribe_messages=True)
    stops.subscribe(redis_keys.STOPS)
    assert stops.get_message(timeout=5) is None
    client.cancel(request.id)
    message = stops.get_message(timeout=5)
    assert message is not None
    assert message["data"] == str(request.id).encode()
    assert leases.renew([(request.id, claim.ticket)])[0].stop
    assert log.append([(request.id, claim.ticket, delta("a"))])[0].stop
    assert client.standing(request.id).stop_requested
    stops.close()


def test_cancel_of_an_unknown_one_does_nothing(redis: redis_py.Redis, client: InferenceClient) -> None:
    client.cancel(uuid4())
    assert redis.dbsize() == 0


def test_sweep_finds_each_state(
    redis: redis_py.Redis, config: InferenceConfig, client: InferenceClient, room: WaitingRoom, leases: Leases
) -> None:
    request = make_request()
    assert client.sweep(request.id, stop_requested=False) is Swept.UNKNOWN
    client.submit(request)
    assert client.sweep(request.id, stop_requested=False) is Swept.WAITING
    claim = claimed(room)
    assert client.sweep(request.id, stop_requested=False) is Swept.RUNNING
    assert client.sweep(request.id, stop_requested=True) is Swept.NUDGED
    assert client.sweep(request.id, stop_requested=True) is Swept.RUNNING
    leases.lapse(request.id, force=True)
    assert client.sweep(request.id, stop_requested=True) is Swept.ENDED
    assert client.sweep(request.id, stop_requested=False) is Swept.FINISHED
    assert not leases.renew([(request.id, claim.ticket)])[0].held


def test_sweep_gives_up_after_the_last_attempt(
    client: InferenceClient, room: WaitingRoom, leases: Leases, config: InferenceConfig
) -> None:
    request = make_request()
    client.submit(request)
    for _ in range(config.max_attempts):
        claimed(room)
        leases.lapse(request.id, force=True)
        swept = client.sweep(request.id, stop_requested=False)
    assert swept is Swept.ENDED
    end = client.read(request.id).finish
    assert end is not None
    assert end.error is not None
    assert (end.error.code, end.error.retryable) == ("worker_lost", True)
    assert end.error.message == "The worker stopped three times while writing this answer."


def test_sweep_rings_again_but_bells_never_pile_up(redis: redis_py.Redis, config: InferenceConfig) -> None:
    client = InferenceClient(config, ring_again_ms=0)
    request = make_request()
    client.submit(request)
    assert client.sweep(request.id, stop_requested=False) is Swept.WAITING
    redis.delete(redis_keys.bells(MODEL))
    assert client.sweep(request.id, stop_requested=False) is Swept.RANG
    for _ in range(5):
        assert client.sweep(request.id, stop_requested=False) is Swept.WAITING
    assert redis.llen(redis_keys.bells(MODEL)) == 1
    client.close()


@pytest.mark.parametrize("state", ["waiting", "leased", "finished"])
def test_forget_leaves_nothing(
    redis: redis_py.Redis, client: InferenceClient, room: WaitingRoom, log: EventLog, state: str
) -> None:
    request = make_request()
    client.submit(request)
    if state != "waiting":
        claim = claimed(room)
        log.append([(request.id, claim.ticket, delta("secret"))])
        if state == "finished":
            log.finish(request.id, claim.ticket, finish())
    client.forget(request.id)
    client.forget(request.id)
    assert client.standing(request.id).state == "unknown"
    with pytest.raises(EventsExpired):
        client.read(request.id)
    left = [key.decode() for key in redis.scan_iter(f"{redis_keys.PREFIX}*")]
    assert not [key for key in left if str(request.id) in key or request.conversation_key in key]
    assert redis.zcard(redis_keys.LEASES) == 0
    assert room.claim(MODEL, "w0") is None


def test_workers_and_models_are_those_that_live(redis: redis_py.Redis, registry: Registry) -> None:
    kit = registry.store_kit(b"kit")
    assert registry.kit(kit) == b"kit"
    assert registry.store_kit(b"kit") == kit
    card = worker_card("w0")
    card = msgspec.structs.replace(card, model=msgspec.structs.replace(card.model, prompt_kit=kit))
    assert registry.announce(card), "the kit is there"
    assert not registry.announce(worker_card("w1", state="loading")), "its kit is not"
    assert [c.name for c in registry.workers()] == ["w0", "w1"]
    assert [m.prompt_kit for m in registry.models()] == [kit]
    redis.delete(redis_keys.worker("w0"))  # as when it expires
    assert [c.name for c in registry.workers()] == ["w1"]
    registry.withdraw("w1")
    assert registry.workers() == []
    assert registry.kit("unknown") is None


def test_a_checked_prompt_tells_what_would_no_longer_be_seen(client: InferenceClient, registry: Registry) -> None:
    card = worker_card("w0")
    model = msgspec.structs.replace(card.model, context_tokens=512, prompt_kit=registry.store_kit(kit(512).to_bytes()))
    registry.announce(msgspec.structs.replace(card, model=model))
    turn = (ChatMessage(role=Role.USER, content="u" * 49), ChatMessage(role=Role.ASSISTANT, content="a" * 49))
    newest = ChatMessage(role=Role.USER, content="n" * 49)
    sampling = SamplingParams(max_tokens=212)
    short = client.check_prompt(make_request(messages=(*turn, newest), sampling=sampling))
    assert short == CheckedPrompt(num_tokens=150, num_dropped_messages=0, context_tokens=512)
    long = client.check_prompt(make_request(messages=(*turn * 6, newest), sampling=sampling))
    assert long.num_tokens <= 300
    assert long.num_dropped_messages % 2 == 0
    assert long.num_tokens == 50 * (13 - long.num_dropped_messages)
    with pytest.raises(PromptTooLong):
        client.check_prompt(make_request(messages=(ChatMessage(role=Role.USER, content="x" * 600),)))


def test_a_model_is_described_by_its_worker_with_the_smallest_window(registry: Registry) -> None:
    """Any worker may answer: what the site promises must hold at each of them."""
    for name, context_tokens, started_at in (("w0", 4096, 3.0), ("w1", 2048, 1.0), ("w2", 2048, 2.0), ("w3", 512, 9.0)):
        card = worker_card(name, started_at=started_at, state="loading" if name == "w3" else "ready")
        model = msgspec.structs.replace(card.model, context_tokens=context_tokens, title=name)
        registry.announce(msgspec.structs.replace(card, model=model))
    assert [(model.title, model.context_tokens) for model in registry.models()] == [("w2", 2048)]


def test_prompt_of_a_model_nobody_serves_is_refused(client: InferenceClient) -> None:
    with pytest.raises(ModelNotServed):
        client.check_prompt(make_request())


async def test_async_client_sees_the_same(
    config: InferenceConfig, client: InferenceClient, room: WaitingRoom, log: EventLog, registry: Registry
) -> None:
    other = AsyncInferenceClient(config)
    request = make_request()
    with pytest.raises(EventsExpired):
        await other.read(request.id)
    client.submit(request)
    registry.announce(worker_card("w0"))
    assert (await other.standing(request.id)).state == "waiting"
    claim = claimed(room)
    log.append([(request.id, claim.ticket, delta("a")), (request.id, claim.ticket, delta("b"))])
    assert await other.read(request.id, 1) == client.read(request.id, 1)
    assert await other.workers() == client.workers()
    assert await other.models() == client.models()
    await other.cancel(request.id)
    assert (await other.standing(request.id)).stop_requested
    assert await other.is_reachable()
    assert other.news_channel(request.id) == redis_keys.news(request.id)
    await other.aclose()


@pytest.fixture(params=["refuses", "hangs"])
def unreachable(request: pytest.FixtureRequest, config: InferenceConfig) -> Iterator[InferenceClient]:
    """A client of a server that refuses connections, or takes them and never answers."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if request.param == "hangs":
            server.listen(50)
        url = f"redis://127.0.0.1:{server.getsockname()[1]}/0"
        client = InferenceClient(dataclasses.replace(config, redis_url=url))
        yield client
        client.close()


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.ring(MODEL),
        lambda client: client.submit(make_request()),
        lambda client: client.standing(uuid4()),
        lambda client: client.end(uuid4(), Finish(reason=FinishReason.ERROR)),
    ],
    ids=["ring", "submit", "standing", "end"],
)
def test_unreachable_redis_fails_fast_and_by_name(
    unreachable: InferenceClient, call: Callable[[InferenceClient], object]
) -> None:
    start = time.monotonic()
    with pytest.raises(StoreUnavailable):
        call(unreachable)
    assert time.monotonic() - start < 6


def test_unreachable_redis_is_said_not_raised(unreachable: InferenceClient) -> None:
    assert not unreachable.is_reachable()
