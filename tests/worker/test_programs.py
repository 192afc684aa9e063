"""What programs ask for, through a whole worker: answers that go on from a given text, JSON behind a thought."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from inference.messages.generation import (
    ChatMessage,
    Delta,
    Event,
    EventKind,
    FinishReason,
    GenerationRequest,
    Role,
    ToolSpec,
)
from inference.worker.attempt.input_processor import Preparation
from tests.worker.scripted import ScriptedWorker, Store, check_whole, ids, request, text_of
from tests.worker.test_tool_calls import CALL, scripted

MakeWorker = Callable[..., ScriptedWorker]
ANSWER = "Line one\nLine two, naïve 👩‍💻\n\n```\nx = 1\n```\nSTOP not"
SCHEMA = json.dumps(
    {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
)
THOUGHT = "<think>\nwhich?\n</think>\n\n"


def going_on(store: Store, given: str, **fields: Any) -> GenerationRequest:
    sampling = fields.pop("sampling", {})
    asked = request("hello", **sampling)
    turns = (*asked.messages, ChatMessage(role=Role.ASSISTANT, content=given))
    asked = msgspec.structs.replace(asked, messages=turns, **fields)
    assert store.room.enter(asked)
    return asked


@pytest.mark.parametrize("num_chars", [1, 8, 9, 14, 30, len(ANSWER) - 1])
def test_an_answer_goes_on_from_the_last_message_and_only_what_is_new_is_told(
    store: Store, make_worker: MakeWorker, num_chars: int
) -> None:
    worker = make_worker({"hello": ANSWER})
    given, rest = ANSWER[:num_chars], ANSWER[num_chars:]
    asked = going_on(store, given, thinking=False)
    worker.answer()
    log = store.read(asked.id)
    check_whole(log)
    assert text_of(log) == ("", rest)
    usage = store.finish_of(asked.id).usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(b"hello") + 1 + len(ids(given)), len(ids(rest)))


def test_a_given_text_holds_no_stop_string_and_costs_none_of_the_limit(store: Store, make_worker: MakeWorker) -> None:
    worker = make_worker({"hello": "a STOP b STOP c"})
    asked = going_on(store, "a STOP", sampling={"stop": ("STOP",)})
    worker.answer()
    assert text_of(store.read(asked.id))[1] == " b "
    asked = going_on(store, "a STOP", sampling={"max_tokens": 3})
    worker.answer()
    assert text_of(store.read(asked.id))[1] == " b "
    assert store.finish_of(asked.id).reason is FinishReason.LENGTH


def test_a_lost_attempt_goes_on_from_the_given_text_and_what_was_told(store: Store, make_worker: MakeWorker) -> None:
    worker = make_worker({"hello": ANSWER})
    asked = going_on(store, ANSWER[:5], thinking=False)
    told = ANSWER[5:12]
    deltas = (Delta("content", told),)
    begun = Event(kind=EventKind.DELTA, deltas=deltas, tokens=tuple(told.encode()))
    store.write_part(asked.id, [Event(kind=EventKind.STARTED), begun])
    worker.answer()
    log = store.read(asked.id)
    check_whole(log)
    assert text_of(log)[1] == ANSWER[5:]


def test_json_goes_on_in_the_json_that_is_given_and_else_begins(store: Store, make_worker: MakeWorker) -> None:
    for given, rest in (('{"a": ', "1}"), ("Here it is:\n", '{"a": 2}')):
        worker = make_worker({"hello": given + rest})
        asked = going_on(store, given, sampling={"json_schema": SCHEMA})
        worker.answer()
        assert text_of(store.read(asked.id))[1] == rest
        assert store.finish_of(asked.id).reason is FinishReason.STOP
        worker.stop()


def json_asked(store: Store, **fields: Any) -> GenerationRequest:
    asked = msgspec.structs.replace(request("hello", json_schema=SCHEMA, **fields.pop("sampling", {})), **fields)
    assert store.room.enter(asked)
    return asked


@pytest.mark.parametrize("answer", [THOUGHT + '{"a": 1}', '<think>{"a": </think>{"a": 1}', '{"a": 1}'])
def test_json_comes_behind_a_thought_where_thinking_is_asked_for(
    store: Store, make_worker: MakeWorker, answer: str
) -> None:
    worker = scripted(make_worker, answer)
    asked = json_asked(store, thinking=True)
    worker.answer()
    log = store.read(asked.id)
    check_whole(log)
    reasoning, content = text_of(log)
    assert content == '{"a": 1}'
    assert ("think" in answer) == bool(reasoning)
    assert store.finish_of(asked.id).reason is FinishReason.STOP


def test_no_end_of_a_thought_makes_the_answer_anything_but_json(store: Store, make_worker: MakeWorker) -> None:
    worker = scripted(make_worker, THOUGHT + "Well, it is 1.")
    asked = json_asked(store, thinking=True, sampling={"max_tokens": 60})
    worker.answer()
    reasoning, content = text_of(store.read(asked.id))
    assert (reasoning, json.loads(content)["a"] in (1, 2)) == ("which?", True)


def test_a_thought_before_json_ends_with_its_budget(store: Store, make_worker: MakeWorker) -> None:
    worker = scripted(make_worker, "<think>" + "a" * 200)
    asked = json_asked(store, thinking=True, sampling={"thinking_budget": 20})
    worker.answer()
    reasoning, content = text_of(store.read(asked.id))
    assert (reasoning, json.loads(content)["a"] in (1, 2)) == ("a" * 20, True)


def test_without_a_wish_no_thought_comes_before_json(store: Store, make_worker: MakeWorker) -> None:
    worker = scripted(make_worker, THOUGHT + '{"a": 1}')
    for wish in (None, False):
        asked = json_asked(store, thinking=wish)
        worker.answer()
        reasoning, content = text_of(store.read(asked.id))
        assert (reasoning, json.loads(content)["a"] in (1, 2)) == ("", True)


@pytest.mark.parametrize("num_done", [3, 9, 16, 19, 22])
def test_another_worker_goes_on_in_the_thought_or_in_the_json(
    store: Store, make_worker: MakeWorker, num_done: int
) -> None:
    answer = THOUGHT + '{"a": 2}'
    worker = scripted(make_worker, answer)
    asked = json_asked(store, thinking=True)
    tokens = ids(answer)[:num_done]
    model = worker.runtime.bench.model
    chain = Preparation.of(model, asked, []).pipeline(model, asked)
    deltas = tuple(delta for token in tokens for delta in chain.push(token))
    store.write_part(
        asked.id, [Event(kind=EventKind.STARTED), Event(kind=EventKind.DELTA, deltas=deltas, tokens=tuple(tokens))]
    )
    worker.answer()
    log = store.read(asked.id)
    check_whole(log)
    assert text_of(log) == ("which?", '{"a": 2}')


def test_a_thought_may_come_before_json_that_may_be_calls(store: Store, make_worker: MakeWorker) -> None:
    tool = ToolSpec(name="weather", parameters='{"type": "object", "properties": {"unit": {"enum": ["C", "F"]}}}')
    for rest, num_calls in ((CALL, 1), ('{"a": 1}', 0)):
        worker = scripted(make_worker, THOUGHT + rest)
        asked = json_asked(store, thinking=True, tools=(tool,), sampling={"max_tokens": 200})
        worker.answer()
        log = store.read(asked.id)
        assert (text_of(log)[0], len(log.tool_calls)) == ("which?", num_calls)
        worker.stop()
