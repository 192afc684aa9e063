"""An answer whose beginning is given: a cut one that goes on, and one that is given whole."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from inference.client import InferenceClient
from inference.messages.generation import EventKind, FinishReason, GenerationRequest, Opening
from inference.worker.attempt.attempts import Notice
from tests.worker.scripted import (
    CONTEXT_TOKENS,
    ScriptedWorker,
    Store,
    check_whole,
    ids,
    request,
    settings,
    text_of,
    wait_until,
)

MakeWorker = Callable[..., ScriptedWorker]
CONTENT = "Well, naïve café: 👩‍💻 is fine."
DOCUMENT = "# Title\n\nSome *text* with naïve café 👩‍💻, `<think>` and\n\n```py\nprint(1)\n```\n" * 4


def enter(store: Store, question: str, opening: Opening, **sampling: int) -> GenerationRequest:
    asked = msgspec.structs.replace(request(question, **sampling), opening=opening)
    assert store.room.enter(asked)
    return asked


@pytest.mark.parametrize("num_chars", [1, 7, 9, 20, len(CONTENT)])
def test_the_model_goes_on_behind_what_was_said(store: Store, make_worker: MakeWorker, num_chars: int) -> None:
    worker = make_worker({"hello": CONTENT})
    given = CONTENT[:num_chars]
    asked = enter(store, "hello", Opening(content=given))
    worker.answer()
    log = store.read(asked.id)
    check_whole(log)
    assert text_of(log) == ("", CONTENT)
    first = next(event for event in log.events if event.kind is EventKind.DELTA)
    assert first.deltas[0].text.startswith(given), "all of it comes at once, perhaps with more"
    usage = store.finish_of(asked.id).usage
    assert usage.completion_tokens == len(ids(CONTENT)) - len(ids(given))


def test_a_broken_off_thought_is_thought_to_its_end(store: Store, make_worker: MakeWorker) -> None:
    whole = "<think>\nfirst this, then that\n</think>\n\nDone."
    worker = make_worker({"hello": whole})
    asked = enter(store, "hello", Opening(reasoning="first this,"))
    worker.answer()
    assert text_of(store.read(asked.id)) == ("first this, then that", "Done.")


def test_an_answer_with_a_thought_goes_on_in_the_answer(store: Store, make_worker: MakeWorker) -> None:
    whole = "<think>\nfirst this\n</think>\nDone, and more."
    worker = make_worker({"hello": whole})
    asked = enter(store, "hello", Opening(reasoning="first this", content="Done,"))
    worker.answer()
    assert text_of(store.read(asked.id)) == ("first this", "Done, and more.")


def test_tokens_asked_for_are_those_of_the_model(store: Store, make_worker: MakeWorker) -> None:
    worker = make_worker({"hello": "abcdefghij"})
    asked = enter(store, "hello", Opening(content="abcd"), max_tokens=3)
    worker.answer()
    finish = store.finish_of(asked.id)
    assert text_of(store.read(asked.id))[1] == "abcdefg"
    assert (finish.reason, finish.cut, finish.usage.completion_tokens) == (FinishReason.LENGTH, "max_tokens", 3)


def test_a_beginning_that_fills_the_context_is_kept_and_said(store: Store, make_worker: MakeWorker) -> None:
    worker = make_worker({"hello": "never"})
    given = " ".join(map(str, range(CONTEXT_TOKENS)))[:CONTEXT_TOKENS]
    asked = enter(store, "hello", Opening(content=given))
    worker.answer()
    finish = store.finish_of(asked.id)
    assert text_of(store.read(asked.id))[1] == given
    assert (finish.reason, finish.cut) == (FinishReason.LENGTH, "context")


def test_a_lost_attempt_does_not_say_the_beginning_twice(store: Store, make_worker: MakeWorker) -> None:
    asked = enter(store, "hello", Opening(content=CONTENT[:9]))
    first = make_worker({"hello": CONTENT}, backend={"delay_seconds": 0.02})
    thread = first.doorbell()
    wait_until(lambda: any(event.deltas for event in store.read(asked.id).events))
    first.runtime.accepts = False
    first.runtime.attempts.tell_all(Notice.HAND_ON)
    thread.join()
    make_worker({"hello": CONTENT}, name="worker-b").answer()
    log = store.read(asked.id)
    check_whole(log)
    assert text_of(log) == ("", CONTENT)


@pytest.mark.parametrize("rate", [0.0, 400.0, 5_000.0])
def test_a_whole_answer_is_recited_without_the_model(store: Store, make_worker: MakeWorker, rate: float) -> None:
    worker = make_worker()
    asked = enter(store, "quote", Opening(content=DOCUMENT, is_whole=True, tokens_per_second=rate))
    worker.answer()
    log = store.read(asked.id)
    check_whole(log)
    assert text_of(log) == ("", DOCUMENT)
    assert store.finish_of(asked.id).reason is FinishReason.STOP
    assert worker.backend.forwards_begun == 0
    assert worker.records == [asked.id]


def test_a_recital_can_be_stopped(store: Store, make_worker: MakeWorker, valkey_url: str) -> None:
    worker = make_worker()
    asked = enter(store, "quote", Opening(content=DOCUMENT * 50, is_whole=True, tokens_per_second=200))
    thread = worker.doorbell()
    wait_until(lambda: any(event.deltas for event in store.read(asked.id).events))
    InferenceClient(settings(valkey_url)).cancel(asked.id)
    thread.join()
    assert store.finish_of(asked.id).reason is FinishReason.CANCELLED
    content = text_of(store.read(asked.id))[1]
    assert content
    assert (DOCUMENT * 50).startswith(content)


def test_a_recital_goes_on_at_another_worker(store: Store, make_worker: MakeWorker) -> None:
    first = make_worker()
    asked = enter(store, "quote", Opening(content=DOCUMENT, is_whole=True, tokens_per_second=400))
    thread = first.doorbell()
    wait_until(lambda: any(event.deltas for event in store.read(asked.id).events))
    first.runtime.accepts = False
    first.runtime.attempts.tell_all(Notice.HAND_ON)
    thread.join()
    assert store.read(asked.id).finish is None
    make_worker(name="worker-b").answer()
    log = store.read(asked.id)
    check_whole(log)
    assert text_of(log) == ("", DOCUMENT)
