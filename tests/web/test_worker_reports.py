"""What a worker reports is believed only as far as it can be true: planted in Redis, as whoever writes there could."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
import redis as redis_py
from django.test import Client

from chatsite.accounts.models import User
from chatsite.chat import inference, tasks
from chatsite.chat.actions import answer, organize, send
from chatsite.chat.generation import record, request
from chatsite.chat.models import Conversation, Generation
from chatsite.usage.models import UsageDay
from inference.coordination import redis_keys
from inference.coordination.registry import MAX_CARD_BYTES, MAX_WORKERS, Registry
from inference.errors import InvalidRequest
from inference.messages.cards import WorkerCard
from inference.messages.serialization import encode
from tests.web.api_worker import kit
from tests.web.chat_worker import Attempt, StepWorker
from tests.web.spending import limit
from tests.web.test_tasks import sweep

HUGE = 10**12


@pytest.fixture
def attempt(sent: answer.Sent, worker: StepWorker, redis: redis_py.Redis, site: Callable[..., None]) -> Attempt:
    """Claimed: its worker may write its log, and whatever else it likes below it."""
    return worker.claim().start()


def plant(redis: redis_py.Redis, attempt: Attempt, *events: bytes | dict[str, Any], state: str = "finished") -> None:
    """Entries of the log, past every script."""
    for event in events:
        data = event if isinstance(event, bytes) else json.dumps(event).encode()
        seq = redis.hincrby(redis_keys.generation(attempt.id), "seq", 1)
        redis.xadd(redis_keys.log(attempt.id), {"event": data}, id=f"{seq}-0")
    redis.hset(redis_keys.generation(attempt.id), "state", state)


def finish(**facts: Any) -> dict[str, Any]:
    return {"kind": "finish", "finish": {"reason": "stop", **facts}}


def delta(text: str = "", *, num_tokens: int = 1, kind: str = "content", **call: Any) -> dict[str, Any]:
    piece = {"kind": kind, "text": text, **({"call": call} if call else {})}
    return {"kind": "delta", "deltas": [piece], "tokens": [1] * num_tokens}


def recorded(attempt: Attempt) -> Generation:
    tasks.record(str(attempt.id))
    return Generation.objects.select_related("message").get(pk=attempt.id)


# -- tokens and what they cost


def test_a_finish_with_a_trillion_tokens_costs_what_its_log_shows(
    alice: User, worker: StepWorker, redis: redis_py.Redis, site: Callable[..., None]
) -> None:
    worker.announce(kit=kit().to_bytes())
    limit(alice, tokens_per_day=10_000)
    row = send.send_message(alice, send.start_conversation(alice), "hi").generation
    prompt_tokens = request.frozen_request_of(row).prompt_tokens
    assert prompt_tokens > 0
    attempt = worker.claim().start()
    usage = dict.fromkeys(("prompt_tokens", "completion_tokens", "reasoning_tokens"), HUGE)
    plant(redis, attempt, delta("yes", num_tokens=3), finish(usage=usage))
    ended = recorded(attempt)
    assert (ended.status, ended.prompt_tokens, ended.completion_tokens, ended.reasoning_tokens) == (
        *("done", prompt_tokens, 3, 3),
    )
    assert UsageDay.objects.get().charged_tokens == prompt_tokens + 3
    assert send.send_message(alice, send.start_conversation(alice), "again")


def test_a_log_with_more_tokens_than_the_cap_costs_the_cap(attempt: Attempt, redis: redis_py.Redis) -> None:
    cap = attempt.claim.request.sampling.max_tokens
    assert cap is not None
    plant(redis, attempt, delta("x", num_tokens=cap + 5_000), finish(usage={"completion_tokens": cap + 5_000}))
    assert recorded(attempt).completion_tokens == cap


def test_a_prompt_that_nobody_counted_has_no_more_tokens_than_bytes(attempt: Attempt, redis: redis_py.Redis) -> None:
    assert attempt.claim.request.prompt_tokens == 0
    plant(redis, attempt, finish(usage={"prompt_tokens": HUGE, "cached_tokens": HUGE + 5}))
    ended = recorded(attempt)
    assert 0 < ended.prompt_tokens < 20_000
    assert ended.cached_tokens == ended.prompt_tokens


def test_negative_numbers_count_as_none(attempt: Attempt, redis: redis_py.Redis) -> None:
    usage = {"prompt_tokens": -5, "cached_tokens": -9, "completion_tokens": -7, "reasoning_tokens": -1}
    plant(redis, attempt, delta("x"), finish(usage=usage, decode_seconds=-1.0, num_dropped_messages=-4))
    ended = recorded(attempt)
    assert (ended.prompt_tokens, ended.cached_tokens, ended.completion_tokens, ended.reasoning_tokens) == (0, 0, 0, 0)
    assert (ended.decode_seconds, ended.num_dropped) == (0.0, 0)
    assert UsageDay.objects.get().charged_tokens == 0


def test_deleting_an_answer_with_a_forged_finish_costs_no_more_either(
    attempt: Attempt, alice: User, conversation: Conversation, redis: redis_py.Redis
) -> None:
    plant(redis, attempt, delta("x", num_tokens=2), finish(usage={"completion_tokens": HUGE}))
    organize.delete(alice, conversation)
    assert UsageDay.objects.get().charged_tokens == 2


# -- texts


@pytest.mark.parametrize(
    "facts",
    [
        {"decode_seconds": 1e300},
        {"num_dropped_messages": 2**40},
        {"worker": "w" * 1_000_000},
        {"worker": "a\x00b"},
        {"error": {"code": "c\x00" * 5_000, "message": "m" * 5_000_000}},
        {"content_sha256": "0" * 5_000_000},
        {"num_chars": 2**70},
    ],
    ids=["seconds", "dropped", "long worker", "worker with NUL", "error", "sha256", "chars"],
)
def test_facts_beyond_their_column_are_cut_and_the_answer_is_kept(
    attempt: Attempt, redis: redis_py.Redis, facts: dict[str, Any]
) -> None:
    plant(redis, attempt, delta("kept"), finish(**facts))
    ended = recorded(attempt)
    assert (ended.status, ended.message.content) == ("done", "kept")
    assert 0 <= ended.decode_seconds <= 86_400
    assert ended.num_dropped <= 1
    assert max(map(len, (ended.worker, ended.error_code, ended.error_message))) <= 1_000


def test_a_text_longer_than_its_tokens_can_make_is_cut(
    attempt: Attempt, redis: redis_py.Redis, site: Callable[..., None]
) -> None:
    cap = attempt.claim.request.sampling.max_tokens
    assert cap is not None
    plant(redis, attempt, *[delta("x" * 1_000_000)] * 4, finish())
    assert len(recorded(attempt).message.content) <= (cap + 1) * 512 < 4_000_000


def test_calls_are_bounded_and_fit_for_the_database(attempt: Attempt, redis: redis_py.Redis) -> None:
    many = [
        delta(kind="tool_call", index=i, id="i" * 9_000, name="n\x00", arguments='{"a": "\x00"}') for i in range(200)
    ]
    plant(redis, attempt, *many, finish(reason="tool_calls"))
    ended = recorded(attempt)
    assert ended.status == "done"
    assert len(ended.message.calls) <= 64
    assert len(ended.message.calls[0]["id"]) <= 200
    assert "\x00" not in str(ended.message.calls[0])


# -- logs that are none


UNREADABLE = [
    b"\x80\x05pickled.",
    b"",
    b"{",
    b'{"kind":"finish","finish":{"reason":"stop","decode_seconds":NaN}}',
    b'{"kind":"finish","finish":{"reason":"stop","worker":"\\ud800"}}',
    b'{"kind":"delta","deltas":[{"kind":"content","text":"\xff"}]}',
    b'{"kind":"delta","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"kind":"delta","num_done":' + b"9" * 100_000 + b"}",
]


@pytest.mark.parametrize("entry", UNREADABLE, ids=lambda entry: repr(entry[:60]))
def test_a_log_that_cannot_be_read_ends_its_answer_as_failed(
    attempt: Attempt, owner: Client, conversation: Conversation, redis: redis_py.Redis, entry: bytes
) -> None:
    attempt.write("so far")
    plant(redis, attempt, entry, state="leased")
    assert owner.get(f"/chat/{conversation.pk}/").status_code == 200
    plant(redis, attempt, finish())
    ended = recorded(attempt)
    assert (ended.status, ended.error_code) == ("failed", "log_unreadable")
    assert not redis.exists(redis_keys.log(attempt.id), redis_keys.generation(attempt.id))
    assert owner.get(f"/chat/{conversation.pk}/").status_code == 200


GARBLED: list[dict[str, Any]] = [
    {"state": "finished"},  # and no finish in the log
    {"state": "finished", "mark": b"\xff"},
    {"state": "idle", "lost": "x"},
    {"state": "idle", "entered": "x"},
]


@pytest.mark.parametrize("fields", GARBLED, ids=repr)
def test_facts_in_redis_that_are_none_end_the_answer_at_the_next_sweep(
    attempt: Attempt, owner: Client, conversation: Conversation, redis: redis_py.Redis, fields: dict[str, Any]
) -> None:
    redis.hset(redis_keys.generation(attempt.id), mapping=fields)
    assert owner.get(f"/chat/{conversation.pk}/").status_code == 200
    row = Generation.objects.get(pk=attempt.id)
    sweep(row)
    assert (row.status, row.error_code) == ("failed", "log_unreadable")


@pytest.mark.parametrize("fields", [{"seq": "x"}, {"entered": "x"}], ids=repr)
def test_an_answer_whose_facts_are_none_can_be_stopped(
    attempt: Attempt, alice: User, redis: redis_py.Redis, fields: dict[str, Any]
) -> None:
    redis.hset(redis_keys.generation(attempt.id), mapping={"state": "waiting", **fields})
    row = Generation.objects.get(pk=attempt.id)
    send.stop(alice, row)
    sweep(row)
    assert row.status in ("failed", "stopped")


@pytest.mark.parametrize("key", [redis_keys.generation, redis_keys.log], ids=["facts", "log"])
def test_values_of_another_kind_end_the_answer_at_the_next_sweep(
    attempt: Attempt, owner: Client, conversation: Conversation, redis: redis_py.Redis, key: Callable[..., str]
) -> None:
    redis.hset(redis_keys.generation(attempt.id), "state", "finished")
    redis.delete(key(attempt.id))
    redis.set(key(attempt.id), "a text")
    assert owner.get(f"/chat/{conversation.pk}/").status_code == 200
    row = Generation.objects.get(pk=attempt.id)
    sweep(row)
    assert (row.status, row.error_code) == ("failed", "log_unreadable")


def test_a_log_with_more_entries_than_an_answer_has_is_none(
    attempt: Attempt, redis: redis_py.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference.coordination.event_log.MAX_ENTRIES", 50)
    plant(redis, attempt, *[delta("x")] * 60, finish())
    assert recorded(attempt).error_code == "log_unreadable"


def test_a_log_behind_which_nothing_can_be_written_is_recorded_and_forgotten(
    attempt: Attempt, redis: redis_py.Redis
) -> None:
    attempt.write("kept")
    redis.xadd(redis_keys.log(attempt.id), {"event": json.dumps(finish()).encode()}, id=f"{2**63}-0")
    redis.hset(redis_keys.generation(attempt.id), "state", "finished")
    ended = recorded(attempt)
    assert (ended.status, ended.message.content) == ("done", "kept")
    assert not redis.exists(redis_keys.log(attempt.id), redis_keys.generation(attempt.id))


def test_asking_to_record_what_has_not_finished_does_nothing(attempt: Attempt, redis: redis_py.Redis) -> None:
    attempt.write("so far")
    assert record.record(attempt.id) is False
    row = recorded(attempt)
    assert (row.status, row.message.content) == ("active", "")
    attempt.finish()
    assert recorded(attempt).status == "done"


# -- cards


def card(name: str = "step-1", **changes: Any) -> dict[str, Any]:
    model = {
        **{"name": "tiny", "title": "Tiny", "architecture": "none", "context_tokens": 512, "prompt_kit": ""},
        **changes.pop("model", {}),
    }
    numbers = {"num_slots": 4, "num_free_slots": 4, "started_at": 1.0, "seen_at": 1.0}
    return {"name": name, "model": model, "device": "cpu", **numbers, **changes}


def announce(redis: redis_py.Redis, data: bytes | dict[str, Any], name: str = "step-1") -> None:
    redis.set(redis_keys.worker(name), data if isinstance(data, bytes) else json.dumps(data))
    redis.zadd(redis_keys.WORKERS, {name: 2**45})


CARDS: list[dict[str, Any]] = [
    card(num_slots=10**9),
    card(num_free_slots=-1),
    card(num_slots=2**80),
    card(engine_idle_seconds=-1.0),
    card(started_at=1e300),
    card(device="d" * 10_000),
    card(device="a\x00b"),
    card(notes=["\x1b]0;a title for your terminal\x07"]),
    card(notes=["n"] * 1_000),
    card(degradations=["d" * 100_000]),
    card(name="another"),
    card(model={"name": ""}),
    card(model={"name": "m" * 101}),
    card(model={"name": "a\nb"}),
    card(model={"title": "t\x00"}),
    card(model={"context_tokens": -1}),
    card(model={"context_tokens": 10**15}),
    card(model={"adapters": ["a"] * 1_000}),
    card(model={"sampling": {"temperature": 1e9}}),
]


@pytest.mark.parametrize("planted", CARDS, ids=lambda planted: json.dumps(planted)[:50])
def test_a_card_that_no_worker_has_is_not_shown(redis: redis_py.Redis, planted: dict[str, Any]) -> None:
    announce(redis, planted)
    announce(redis, card("good"), "good")
    assert [found.name for found in Registry(redis).workers()] == ["good"]


@pytest.mark.parametrize("name", ["", "a\nb", "n" * 300, "a\x00"])
def test_a_name_that_no_worker_has_is_not_shown(redis: redis_py.Redis, name: str) -> None:
    announce(redis, card(name), name)
    assert Registry(redis).workers() == []


def test_cards_that_cannot_be_read_are_not_shown(redis: redis_py.Redis) -> None:
    announce(redis, b"\x80\x05pickled.")
    announce(redis, card("utf-8") | {"device": "x" * MAX_CARD_BYTES}, "long")
    redis.hset(redis_keys.worker("hash"), "a", "b")
    redis.zadd(redis_keys.WORKERS, {"hash": 2**45, b"\xff": 2**45})
    assert Registry(redis).workers() == []


def test_of_ten_thousand_cards_no_more_are_read_than_a_fleet_has(redis: redis_py.Redis) -> None:
    names = [f"w{i}" for i in range(10_000)]
    redis.zadd(redis_keys.WORKERS, dict.fromkeys(names, 2**45))
    redis.mset({redis_keys.worker(name): json.dumps(card(name)) for name in names})
    assert len(Registry(redis).workers()) == MAX_WORKERS


@pytest.mark.parametrize(
    "fields",
    [{"sentence": "\x1b[2J"}, {"sentence": "s" * 10_000}, {"num_answers": -1}],
    ids=["escape", "long", "negative"],
)
def test_a_report_of_a_swap_that_no_worker_gives_is_none(redis: redis_py.Redis, fields: dict[str, Any]) -> None:
    order = uuid4()
    redis.set(redis_keys.swap_report(order), json.dumps({"order": str(order), "state": "ready", **fields}))
    with pytest.raises(InvalidRequest):
        inference.inference_client().swap_report(order)


def test_a_hundred_megabytes_are_not_fetched_for_a_card(redis: redis_py.Redis) -> None:
    redis.setrange(redis_keys.worker("big"), 100_000_000, b"x")
    redis.zadd(redis_keys.WORKERS, {"big": 2**45})
    before = redis.info("stats")["total_net_output_bytes"]
    assert Registry(redis).workers() == []
    assert redis.info("stats")["total_net_output_bytes"] - before < 2 * MAX_CARD_BYTES


def test_a_kit_that_is_not_the_one_its_key_names_is_none(redis: redis_py.Redis) -> None:
    registry = Registry(redis)
    key = registry.store_kit(b"a kit")
    assert registry.kit(key) == b"a kit"
    redis.set(redis_keys.kit(key), b"another")
    assert registry.kit(key) is None


def test_our_own_cards_are_within_the_bounds(redis: redis_py.Redis, worker: StepWorker) -> None:
    worker.announce(kit=kit().to_bytes())
    (found,) = Registry(redis).workers()
    assert isinstance(found, WorkerCard)
    assert len(encode(found)) < MAX_CARD_BYTES / 10
