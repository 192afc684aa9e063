"""One generation, start to finish, and every way it can end."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable

import msgspec
import pytest

from inference.messages.generation import ChatMessage, Event, EventKind, FinishReason, Role
from inference.output.deltas import OutputPipeline, merged
from tests.worker.scripted import (
    CONTEXT_TOKENS,
    MODEL,
    TAGS,
    ScriptedWorker,
    Store,
    check_whole,
    ids,
    request,
    text_of,
    wait_until,
)

MakeWorker = Callable[..., ScriptedWorker]
ANSWER = "<think>\nwhy 🏳️‍🌈?\n</think>\n\nWell, naïve café: 👩‍💻 is fine."
REASONING, CONTENT = "why 🏳️‍🌈?", "Well, naïve café: 👩‍💻 is fine."


def token_bytes(token: int) -> bytes:
    return bytes([token]) if token < 256 else b""


def entries(tokens: list[int], stop: tuple[str, ...] = ()) -> list[Event]:
    """What an attempt writes for these tokens, as one delta entry."""
    chain = OutputPipeline(token_bytes, think_tags=TAGS, stop=stop)
    deltas = merged(delta for token in tokens for delta in chain.push(token))
    return [
        Event(kind=EventKind.STARTED, worker="worker-dead"),
        Event(kind=EventKind.DELTA, deltas=tuple(deltas), tokens=tuple(tokens)),
    ]


def test_a_whole_answer_is_in_the_log(store: Store, make_worker: MakeWorker) -> None:
    worker = make_worker({"hello": ANSWER})
    asked = store.enter("hello")
    worker.answer()
    log = store.read(asked.id)
    check_whole(log)
    assert log.events[0] == Event(kind=EventKind.STARTED, seq=1, worker="worker-a")
    assert text_of(log) == (REASONING, CONTENT)
    finish = store.finish_of(asked.id)
    assert finish.reason is FinishReason.STOP
    assert finish.error is None
    assert finish.worker == "worker-a"
    assert finish.content_sha256 == hashlib.sha256(CONTENT.encode()).hexdigest()
    assert finish.num_chars == len(CONTENT)
    assert finish.usage.prompt_tokens == len("hello") + 1
    assert finish.usage.completion_tokens == len(ids(ANSWER))
    assert finish.usage.reasoning_tokens == len(ids("<think>\nwhy 🏳️‍🌈?\n</think>"))
    assert [token for event in log.events for token in event.tokens] == ids(ANSWER)
    assert worker.records == [asked.id]
    assert store.room.standing(asked.id).state == "finished"


def test_a_stop_string_ends_the_answer_and_frees_the_slot(store: Store, make_worker: MakeWorker) -> None:
    worker = make_worker({"count": "1 2 3 4 5 6 7 8 9"})
    asked = store.enter("count", stop=(" 7",))
    worker.answer()
    assert text_of(store.read(asked.id)) == ("", "1 2 3 4 5 6")
    assert store.finish_of(asked.id).reason is FinishReason.STOP
    assert worker.engine.stats().num_free_slots == 4


def test_max_tokens_ends_with_length_and_shows_what_was_held_back(store: Store, make_worker: MakeWorker) -> None:
    worker = make_worker({"hello": "ends with <|im and more"})
    asked = store.enter("hello", max_tokens=14, stop=("<|im_end|>",))
    worker.answer()
    assert text_of(store.read(asked.id)) == ("", "ends with <|im")
    finish = store.finish_of(asked.id)
    assert (finish.reason, finish.cut, finish.usage.completion_tokens) == (FinishReason.LENGTH, "max_tokens", 14)


@pytest.mark.parametrize("max_tokens", [None, 10_000])
def test_a_full_context_ends_the_answer_and_says_so(
    store: Store, make_worker: MakeWorker, max_tokens: int | None
) -> None:
    worker = make_worker({"x" * 1900: "".join(f"{n} " for n in range(2000))})
    asked = store.enter("x" * 1900, max_tokens=max_tokens)
    worker.answer()
    finish = store.finish_of(asked.id)
    assert (finish.reason, finish.cut) == (FinishReason.LENGTH, "context")
    assert finish.usage.completion_tokens == CONTEXT_TOKENS - 1901


def test_the_finish_says_how_many_messages_the_model_no_longer_saw(store: Store, make_worker: MakeWorker) -> None:
    worker = make_worker({"hello": "Hi."})
    turn = [ChatMessage(role=Role.USER, content="u" * 300), ChatMessage(role=Role.ASSISTANT, content="a" * 300)]
    messages = (*turn * 4, ChatMessage(role=Role.USER, content="hello"))
    asked = msgspec.structs.replace(request("hello"), messages=messages)
    assert store.room.enter(asked)
    short = store.enter("hello")
    worker.answer()
    dropped = store.finish_of(asked.id).num_dropped_messages
    assert dropped > 0 and dropped % 2 == 0
    assert store.finish_of(asked.id).usage.prompt_tokens == 301 * (8 - dropped) + 6
    assert store.finish_of(short.id).num_dropped_messages == 0


REPEATING = "Well: " + "again and " * 150


def test_an_answer_that_only_repeats_itself_is_cut(store: Store, make_worker: MakeWorker) -> None:
    worker = make_worker({"loop": REPEATING})
    asked = store.enter("loop")
    worker.answer()
    log = store.read(asked.id)
    check_whole(log)
    finish = store.finish_of(asked.id)
    assert (finish.reason, finish.cut) == (FinishReason.LENGTH, "loop")
    assert 512 <= finish.usage.completion_tokens < 600
    assert REPEATING.startswith(text_of(log)[1])
    assert worker.engine.stats().num_free_slots == 4


@pytest.mark.parametrize("cut", [100, 511, 512, 543, 544])
def test_a_repeating_answer_is_cut_at_the_same_place_whoever_goes_on(
    store: Store, make_worker: MakeWorker, cut: int
) -> None:
    worker = make_worker({"loop": REPEATING})
    alone = store.enter("loop")
    worker.answer()
    asked = store.enter("loop")
    store.write_part(asked.id, entries(ids(REPEATING)[:cut]))
    worker.answer()
    assert text_of(store.read(asked.id)) == text_of(store.read(alone.id))
    assert store.finish_of(asked.id).cut == "loop"


@pytest.mark.parametrize(
    ("options", "sampling"), [({"LOOP_TOKENS": 0}, {}), ({}, {"ignore_eos": True, "max_tokens": 1506})]
)
def test_repetition_may_be_wanted(
    store: Store, make_worker: MakeWorker, options: dict[str, int], sampling: dict[str, object]
) -> None:
    worker = make_worker({"loop": REPEATING}, **options)
    asked = store.enter("loop", **sampling)
    worker.answer()
    assert text_of(store.read(asked.id))[1] == REPEATING


def test_each_users_cache_is_their_own(store: Store, make_worker: MakeWorker) -> None:
    """The prompt kit of these tests has no text of its own, so there is nothing to share."""
    question = "x" * 900
    worker = make_worker({question: "ok"})
    cached = []
    for user in ("anna", "anna", "berta"):
        asked = msgspec.structs.replace(request(question), user_key=user)
        assert store.room.enter(asked)
        worker.answer()
        cached.append(store.finish_of(asked.id).usage.cached_tokens)
    assert cached == [0, 900, 0]


def test_a_prompt_that_cannot_fit_is_a_finish_with_the_reason(store: Store, make_worker: MakeWorker) -> None:
    worker = make_worker()
    asked = store.enter("x" * 5000)
    worker.answer()
    finish = store.finish_of(asked.id)
    assert finish.reason is FinishReason.ERROR
    assert finish.error is not None
    assert finish.error.code == "prompt_too_long"
    assert not finish.error.retryable
    assert worker.records == [asked.id]


def test_bad_logits_end_only_the_answer_they_belong_to(store: Store, make_worker: MakeWorker) -> None:
    bad = tuple(b"bad")
    worker = make_worker(
        {"bad": "never", "good": "fine"}, backend={"nan_when": lambda history: tuple(history[:3]) == bad}
    )
    failing, other = store.enter("bad"), store.enter("good")
    threads = [worker.doorbell(), worker.doorbell()]
    for thread in threads:
        thread.join()
    finish = store.finish_of(failing.id)
    assert finish.reason is FinishReason.ERROR
    assert finish.error is not None
    assert finish.error.code == "bad_logits"
    assert text_of(store.read(other.id)) == ("", "fine")


def test_reading_a_long_prompt_is_told(store: Store, make_worker: MakeWorker) -> None:
    worker = make_worker({"x" * 900: "ok"}, backend={"delay_seconds": 0.03})
    asked = store.enter("x" * 900)
    worker.answer()
    progress = [event for event in store.read(asked.id).events if event.kind is EventKind.PROGRESS]
    assert progress
    assert all(event.num_total == 901 for event in progress)
    done = [event.num_done for event in progress]
    assert done == sorted(set(done))


def test_reading_a_short_prompt_is_not(store: Store, make_worker: MakeWorker) -> None:
    worker = make_worker({"hello": "ok"})
    asked = store.enter("hello")
    worker.answer()
    assert EventKind.PROGRESS not in {event.kind for event in store.read(asked.id).events}


def test_an_answer_may_not_go_on_for_ever(store: Store, make_worker: MakeWorker) -> None:
    worker = make_worker({"long": "z" * 1500}, GENERATION_SECONDS=1, backend={"delay_seconds": 0.01})
    asked = store.enter("long")
    worker.answer()
    finish = store.finish_of(asked.id)
    assert (finish.reason, finish.cut) == (FinishReason.LENGTH, "time")
    assert 0 < finish.usage.completion_tokens < 1500
    assert worker.engine.stats().num_free_slots == 4


@pytest.mark.parametrize("cut", [1, 2, 7, 12, 13, 14, len(ids(ANSWER)) - 3, len(ids(ANSWER))])
def test_a_lost_answer_goes_on_where_it_was(store: Store, make_worker: MakeWorker, cut: int) -> None:
    """Also when the cut lies inside a character or a thinking block."""
    worker = make_worker({"hello": ANSWER})
    asked = store.enter("hello")
    store.write_part(asked.id, entries(ids(ANSWER)[:cut]))
    worker.answer()
    log = store.read(asked.id)
    check_whole(log)
    assert text_of(log) == (REASONING, CONTENT)
    assert [token for event in log.events for token in event.tokens] == ids(ANSWER)
    finish = store.finish_of(asked.id)
    assert finish.usage.completion_tokens == len(ids(ANSWER))
    assert finish.content_sha256 == hashlib.sha256(CONTENT.encode()).hexdigest()


@pytest.mark.parametrize("cut", [1, 20, 59])
def test_a_sampled_answer_goes_on_with_the_same_draws(store: Store, make_worker: MakeWorker, cut: int) -> None:
    worker = make_worker()
    asked = store.enter("dice", temperature=1.0, max_tokens=60)
    worker.answer()
    whole = store.read(asked.id)
    tokens = [token for event in whole.events for token in event.tokens]
    store.redis.flushall()
    assert store.room.enter(asked)
    cut = min(cut, len(tokens))
    store.write_part(asked.id, entries(tokens[:cut]))
    worker.answer()
    assert [token for event in store.read(asked.id).events for token in event.tokens] == tokens
    assert text_of(store.read(asked.id)) == text_of(whole)


def test_a_stop_string_half_written_by_a_lost_attempt_still_stops(store: Store, make_worker: MakeWorker) -> None:
    worker = make_worker({"fox": "the quick brown fox jumps"})
    asked = store.enter("fox", stop=("own fox",))
    store.write_part(asked.id, entries(ids("the quick brow"), ("own fox",)))
    worker.answer()
    assert text_of(store.read(asked.id)) == ("", "the quick br")
    assert store.finish_of(asked.id).reason is FinishReason.STOP


def test_a_model_that_reads_the_tokens_otherwise_does_not_go_on(store: Store, make_worker: MakeWorker) -> None:
    worker = make_worker({"hello": "Hi there"})
    asked = store.enter("hello")
    started, delta = entries(ids("Hi"))
    foreign = Event(kind=EventKind.DELTA, deltas=delta.deltas, tokens=tuple(ids("Ho")))
    store.write_part(asked.id, [started, foreign])
    worker.answer()
    finish = store.finish_of(asked.id)
    assert finish.error is not None
    assert finish.error.code == "text_differs"
    assert text_of(store.read(asked.id)) == ("", "Hi")


def test_who_lost_the_lease_writes_nothing_more(store: Store, make_worker: MakeWorker, valkey_url: str) -> None:
    gate = threading.Event()
    zombie = make_worker({"hello": ANSWER}, backend={"gate": gate})
    asked = store.enter("hello")
    thread = zombie.doorbell()
    assert zombie.backend.wait_for_forward(1)
    store.lose_lease(asked.id)
    other = make_worker({"hello": ANSWER}, name="worker-b")
    other.answer()
    log = store.read(asked.id)
    gate.set()
    thread.join()
    assert store.read(asked.id) == log
    check_whole(log)
    assert store.finish_of(asked.id).worker == "worker-b"
    assert zombie.records == []
    assert zombie.engine.stats().num_free_slots == 4


def test_the_same_worker_may_claim_again_what_it_lost(store: Store, make_worker: MakeWorker) -> None:
    gate = threading.Event()
    worker = make_worker({"hello": ANSWER}, backend={"gate": gate})
    asked = store.enter("hello")
    first = worker.doorbell()
    assert worker.backend.wait_for_forward(1)
    store.lose_lease(asked.id)
    second = worker.doorbell()
    wait_until(lambda: store.room.standing(asked.id).state == "leased")
    gate.set()
    first.join()
    second.join()
    log = store.read(asked.id)
    check_whole(log)
    assert text_of(log) == (REASONING, CONTENT)
    assert worker.records == [asked.id]


def test_an_answer_redis_forgot_is_given_up(store: Store, make_worker: MakeWorker) -> None:
    gate = threading.Event()
    worker = make_worker({"hello": ANSWER}, backend={"gate": gate})
    asked = store.enter("hello")
    thread = worker.doorbell()
    assert worker.backend.wait_for_forward(1)
    store.redis.flushall()
    gate.set()
    thread.join()
    assert store.room.standing(asked.id).state == "unknown"
    assert worker.records == []


def test_a_doorbell_for_another_model_is_no_claim(store: Store, make_worker: MakeWorker) -> None:
    from inference.worker.tasks import answer_waiting

    worker = make_worker({"hello": ANSWER})
    asked = store.enter("hello")
    answer_waiting(worker.runtime, "other")
    assert store.room.standing(asked.id).state == "waiting"
    assert store.room.num_waiting(MODEL) == 1


def test_many_answers_at_once_do_not_mix(store: Store, make_worker: MakeWorker) -> None:
    answers = {f"question {n}": f"<think>thought {n}</think>answer {n} " + chr(0x1F600 + n) * 5 for n in range(20)}
    worker = make_worker(answers)
    asked = {question: store.enter(question) for question in answers}
    threads = [worker.doorbell() for _ in range(4)]
    for thread in threads:
        thread.join()
    for n, entered in enumerate(asked.values()):
        log = store.read(entered.id)
        check_whole(log)
        assert text_of(log) == (f"thought {n}", f"answer {n} " + chr(0x1F600 + n) * 5)
    assert sorted(worker.records) == sorted(entered.id for entered in asked.values())
