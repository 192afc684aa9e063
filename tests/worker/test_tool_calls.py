"""Tool calls and thinking budgets through a whole worker: in the log as they are written, the same after a loss."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from inference.coordination.log_view import Log, tool_calls_of
from inference.messages.generation import Event, EventKind, FinishReason, GenerationRequest, ToolCallDelta, ToolSpec
from inference.output.deltas import OutputPipeline
from tests.worker.scripted import TAGS, ScriptedWorker, Store, check_whole, ids, request, text_of

MakeWorker = Callable[..., ScriptedWorker]

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"unit": {"enum": ["C", "F"]}},
        "required": ["unit"],
        "additionalProperties": False,
    }
)
WEATHER = ToolSpec(name="weather", parameters=SCHEMA)
NOW = ToolSpec(name="now")
CALL = '<tool_call>\n{"name": "weather", "arguments": {"unit": "C"}}\n</tool_call>'
BAD = '<tool_call>{"name": "nope", "arguments": {}}</tool_call>'


def enter(store: Store, question: str, **fields: Any) -> GenerationRequest:
    sampling = fields.pop("sampling", {})
    tools = fields.pop("tools", (WEATHER, NOW))
    asked = msgspec.structs.replace(request(question, **sampling), tools=tools, **fields)
    assert store.room.enter(asked)
    return asked


def scripted(make_worker: MakeWorker, answer: str, **options: Any) -> ScriptedWorker:
    """A worker that gives `answer` to whatever it is asked."""

    def script(history: Any) -> int:
        tokens = list(history)
        num_done = len(tokens) - 1 - max(i for i, token in enumerate(tokens) if token == 256)
        answer_ids = ids(answer)
        return answer_ids[num_done] if num_done < len(answer_ids) else 256

    worker = make_worker(**options)
    worker.backend.script = script
    return worker


def pieces(log: Log) -> list[ToolCallDelta]:
    return [delta.call for event in log.events for delta in event.deltas if delta.call is not None]


def test_calls_are_streamed_into_the_log(store: Store, make_worker: MakeWorker) -> None:
    answer = f"<think>hm</think>\nWait.\n{CALL}\n{BAD}\n{CALL}"
    worker = scripted(make_worker, answer, STREAM_FLUSH_TOKENS=1, backend={"delay_seconds": 0.003})
    asked = enter(store, "weather?")
    worker.answer()
    log = store.read(asked.id)
    check_whole(log)
    reasoning, content = text_of(log)
    assert (reasoning, content) == ("hm", f"Wait.\n\n{BAD}\n")
    assert [(c.name, json.loads(c.arguments)) for c in log.tool_calls] == [("weather", {"unit": "C"})] * 2
    assert len({call.id for call in log.tool_calls}) == 2
    assert [piece.error.code for piece in pieces(log) if piece.error] == ["tool_unknown"]
    arguments = [piece.arguments for piece in pieces(log) if piece.index == 0]
    assert len(arguments) > 1, "argument by argument, not all at the end"
    finish = store.finish_of(asked.id)
    assert (finish.reason, finish.cut) == (FinishReason.TOOL_CALLS, "")
    assert finish.content_sha256 == hashlib.sha256(content.encode()).hexdigest()
    assert finish.num_chars == len(content)


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_cut_call_is_no_content_and_the_answer_too_long(store: Store, make_worker: MakeWorker, choice: str) -> None:
    worker = scripted(make_worker, CALL)
    for num_tokens in (8, 35, 50):
        asked = enter(store, "weather?", sampling={"max_tokens": num_tokens}, tool_choice=choice)
        worker.answer()
        log = store.read(asked.id)
        check_whole(log)
        assert (log.tool_calls, text_of(log)[1]) == ((), "")
        assert (store.finish_of(asked.id).reason, store.finish_of(asked.id).cut) == (FinishReason.LENGTH, "max_tokens")
        calls = tool_calls_of((delta for event in log.events for delta in event.deltas), with_cut=True)
        assert [(one.name, one.arguments) for one in calls] == ([("weather", '{"uni')] if num_tokens == 50 else [])


def test_a_cut_after_a_good_call_leaves_the_good_call(store: Store, make_worker: MakeWorker) -> None:
    worker = scripted(make_worker, CALL + CALL)
    asked = enter(store, "weather?", sampling={"max_tokens": len(CALL) + 50})
    worker.answer()
    assert len(store.read(asked.id).tool_calls) == 1
    finish = store.finish_of(asked.id)
    assert (finish.reason, finish.cut) == (FinishReason.TOOL_CALLS, "max_tokens")


def test_only_one_call_is_made_where_only_one_may_be(store: Store, make_worker: MakeWorker) -> None:
    worker = scripted(make_worker, CALL + CALL + "and on")
    asked = enter(store, "weather?", is_parallel=False)
    worker.answer()
    log = store.read(asked.id)
    assert (len(log.tool_calls), text_of(log)[1]) == (1, "")
    assert store.finish_of(asked.id).usage.completion_tokens < len(CALL)


def test_without_tools_or_choice_calls_are_text(store: Store, make_worker: MakeWorker) -> None:
    worker = scripted(make_worker, CALL)
    for fields in ({"tools": ()}, {"tool_choice": "none"}):
        asked = enter(store, "weather?", **fields)
        worker.answer()
        assert text_of(store.read(asked.id))[1] == CALL
        assert store.finish_of(asked.id).reason is FinishReason.STOP


@pytest.mark.parametrize("num_done", [3, 30, 45, 52, len(CALL) - 4, len(CALL) + 8])
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_another_worker_goes_on_in_the_middle_of_a_call(
    store: Store, make_worker: MakeWorker, num_done: int, choice: str
) -> None:
    answer = f"{CALL}\n{CALL}"
    worker = scripted(make_worker, answer)
    whole = enter(store, "weather?", tool_choice=choice)
    worker.answer()
    expected = store.read(whole.id)
    asked = enter(store, "again?", tool_choice=choice)
    tokens = ids(answer)[:num_done]
    chain = _pipeline(worker, asked)
    deltas = tuple(delta for token in tokens for delta in chain.push(token))
    store.write_part(
        asked.id, [Event(kind=EventKind.STARTED), Event(kind=EventKind.DELTA, deltas=deltas, tokens=tuple(tokens))]
    )
    worker.answer()
    log = store.read(asked.id)
    check_whole(log)
    assert store.finish_of(asked.id).reason is FinishReason.TOOL_CALLS
    assert [(c.name, c.arguments) for c in log.tool_calls] == [(c.name, c.arguments) for c in expected.tool_calls]
    assert {call.id for call in log.tool_calls}.isdisjoint(call.id for call in expected.tool_calls)
    assert [token for event in log.events for token in event.tokens] == ids(answer)


def _pipeline(worker: ScriptedWorker, asked: GenerationRequest) -> OutputPipeline:
    model = worker.runtime.bench.model
    return OutputPipeline(model.token_bytes, think_tags=TAGS, calls=model.calls_in(asked))


@pytest.mark.parametrize("thinking", [None, False])
def test_a_required_call_is_made_whatever_the_model_would_say(
    store: Store, make_worker: MakeWorker, thinking: bool | None
) -> None:
    worker = scripted(make_worker, "No, I would rather not.")
    asked = enter(store, "weather?", tool_choice="required", required_tool="weather", thinking=thinking)
    worker.answer()
    log = store.read(asked.id)
    (call,) = log.tool_calls
    assert call.name == "weather"
    assert json.loads(call.arguments)["unit"] in ("C", "F")
    assert text_of(log) == ("", "")
    assert store.finish_of(asked.id).reason is FinishReason.TOOL_CALLS


def test_a_required_call_may_follow_a_thought(store: Store, make_worker: MakeWorker) -> None:
    worker = scripted(make_worker, f"<think>which one?</think>\n{CALL}")
    asked = enter(store, "weather?", tool_choice="required")
    worker.answer()
    log = store.read(asked.id)
    assert (text_of(log), len(log.tool_calls)) == (("which one?", ""), 1)


def test_schemas_and_calls_go_together(store: Store, make_worker: MakeWorker) -> None:
    for answer, num_calls in ((CALL, 1), ('{"unit": "C"}', 0), ("Neither.", None)):
        worker = scripted(make_worker, answer)
        asked = enter(store, "weather?", thinking=False, sampling={"json_schema": SCHEMA, "max_tokens": 200})
        worker.answer()
        log = store.read(asked.id)
        if num_calls is not None:
            assert len(log.tool_calls) == num_calls
        if not log.tool_calls:
            assert json.loads(text_of(log)[1])["unit"] in ("C", "F")
        worker.stop()


def test_an_impossible_choice_ends_with_its_reason(store: Store, make_worker: MakeWorker) -> None:
    worker = scripted(make_worker, CALL)
    tools = (ToolSpec(name="no-python-name"),)
    asked = enter(store, "weather?", tools=tools, tool_choice="required", tool_dialect="python")
    worker.answer()
    error = store.finish_of(asked.id).error
    assert error is not None and error.code == "invalid_request" and "Python" in error.message


def test_a_required_call_is_made_in_python_too(store: Store, make_worker: MakeWorker) -> None:
    for fields in ({"required_tool": "weather"}, {"is_parallel": False, "tools": (WEATHER,)}):
        worker = scripted(make_worker, "No, I would rather not.")
        asked = enter(store, "weather?", tool_choice="required", tool_dialect="python", **fields)
        worker.answer()
        log = store.read(asked.id)
        (call,) = log.tool_calls
        assert call.name == "weather"
        assert json.loads(call.arguments)["unit"] in ("C", "F")
        assert text_of(log) == ("", "")
        assert store.finish_of(asked.id).reason is FinishReason.TOOL_CALLS
        worker.stop()


def test_a_thought_ends_with_its_budget(store: Store, make_worker: MakeWorker) -> None:
    thought, rest = "a" * 100, "So."
    budget = 20

    def script(history: Any) -> int:
        tokens = list(history)
        answer = tokens[len(tokens) - 1 - tokens[::-1].index(256) + 1 :]
        if 258 not in answer:
            return ids("<think>" + thought)[len(answer)]
        num_said = len(answer) - answer.index(258) - 1
        return rest.encode()[num_said] if num_said < len(rest) else 256

    worker = make_worker()
    worker.backend.script = script
    asked = enter(store, "why?", tools=(), sampling={"thinking_budget": budget})
    worker.answer()
    assert text_of(store.read(asked.id)) == (thought[:budget], rest)
    usage = store.finish_of(asked.id).usage
    assert (usage.reasoning_tokens, usage.completion_tokens) == (budget + 2, budget + 2 + len(rest))


def test_logprobs_are_told_of_content_beside_calls(store: Store, make_worker: MakeWorker) -> None:
    worker = scripted(make_worker, f"Wait.{CALL}Done.")
    asked = enter(store, "weather?", sampling={"logprobs": 0})
    worker.answer()
    log = store.read(asked.id)
    assert text_of(log)[1] == "Wait.Done."
    assert b"".join(told.data for event in log.events for told in event.logprobs) == b"Wait.Done."
