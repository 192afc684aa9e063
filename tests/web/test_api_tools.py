"""Tools over `/v1` with OpenAI's own client: what reaches the worker, and how calls come back, whole and streamed."""

# ruff: noqa: F811  (fixtures are imported, then asked for by their names)

from __future__ import annotations

import json
from typing import Any

import openai
import pydantic
import pytest

from inference.messages.generation import Role
from tests.web.api_client import ask, base_url, client, http, key, user, worker  # noqa: F401  (fixtures)
from tests.web.api_worker import MODEL, ScriptedWorker

pytestmark = pytest.mark.usefixtures("worker")

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER: Any = {
    "type": "function",
    "function": {"name": "weather", "description": "Of a city.", "parameters": PARAMETERS},
}
CALLS = [("call_a", "weather", {"city": "Oslo"}), ("call_b", "weather", {"city": "Rome"})]


def called(message: Any) -> list[tuple[str, str, Any]]:
    return [(call.id, call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or []]


def create(client: openai.OpenAI, text: str, **fields: Any) -> Any:
    return client.chat.completions.create(model=MODEL, messages=ask(text), tools=[WEATHER], **fields)


def test_calls_in_one_piece(client: openai.OpenAI) -> None:
    (choice,) = create(client, "call").choices
    assert called(choice.message) == CALLS
    assert choice.message.content is None
    assert {call.type for call in choice.message.tool_calls} == {"function"}
    assert choice.finish_reason == "tool_calls"
    assert choice.message.model_extra == {"reasoning_content": "Which?"}


def test_calls_are_streamed_argument_by_argument(client: openai.OpenAI) -> None:
    chunks = [chunk.choices[0] for chunk in create(client, "call", stream=True)]
    pieces = [piece for chunk in chunks for piece in chunk.delta.tool_calls or []]
    assert [(piece.index, piece.id, piece.type, piece.function.name, piece.function.arguments) for piece in pieces] == [
        (0, "call_a", "function", "weather", '{"city": '),
        (0, None, None, None, '"Os'),
        (0, None, None, None, 'lo"}'),
        (1, "call_b", "function", "weather", '{"city": "Rome"}'),
    ]
    assert [chunk.finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["tool_calls"]
    assert chunks[0].delta.role == "assistant"


@pytest.mark.parametrize("text", ["call", "call and say", "hello"])
def test_the_clients_accumulator_sees_what_a_whole_answer_holds(client: openai.OpenAI, text: str) -> None:
    whole = create(client, text).choices[0]
    with client.chat.completions.stream(model=MODEL, messages=ask(text), tools=[WEATHER]) as stream:
        seen = [event.type for event in stream]
        final = stream.get_final_completion().choices[0]
    assert called(final.message) == called(whole.message)
    assert (final.message.content or None) == whole.message.content
    assert final.finish_reason == whole.finish_reason
    assert seen.count("tool_calls.function.arguments.done") == len(called(whole.message))


class Weather(pydantic.BaseModel):
    city: str


def test_the_clients_parser_makes_its_own_types(client: openai.OpenAI) -> None:
    tool = openai.pydantic_function_tool(Weather, name="weather")
    answer = client.chat.completions.parse(model=MODEL, messages=ask("call"), tools=[tool])
    assert [call.function.parsed_arguments for call in answer.choices[0].message.tool_calls or []] == [
        Weather(city="Oslo"),
        Weather(city="Rome"),
    ]


def test_a_failed_call_is_content_and_leaves_the_others_alone(client: openai.OpenAI) -> None:
    (choice,) = create(client, "call badly").choices
    assert called(choice.message) == [("call_b", "weather", {"city": "Oslo"})]
    assert choice.message.content == '<tool_call>x</tool_call>{"ci)'
    chunks = [chunk.choices[0].delta for chunk in create(client, "call badly", stream=True)]
    assert "".join(delta.content or "" for delta in chunks) == choice.message.content
    pieces = [piece for delta in chunks for piece in delta.tool_calls or []]
    assert [(piece.index, piece.id) for piece in pieces] == [(0, "call_b"), (1, "call_c")]


def test_calls_and_content_come_together(client: openai.OpenAI) -> None:
    (choice,) = create(client, "call and say").choices
    assert (choice.message.content, len(called(choice.message))) == ("Let me see.", 1)


def test_what_is_asked_for_reaches_the_worker(client: openai.OpenAI, worker: ScriptedWorker) -> None:
    named: Any = {"type": "function", "function": {"name": "weather"}}
    create(client, "call", tool_choice=named, parallel_tool_calls=False, extra_body={"thinking_budget": 99})
    create(client, "call", reasoning_effort="low", extra_body={"chat_template_kwargs": {"tool_dialect": "python"}})
    create(client, "call", tool_choice="none")
    strict: Any = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
    client.chat.completions.create(model=MODEL, messages=ask("call"), tools=[strict])
    first, second, third, fourth = worker.requests
    assert [(tool.name, tool.description, json.loads(tool.parameters)) for tool in first.tools] == [
        ("weather", "Of a city.", PARAMETERS)
    ]
    assert (first.tool_choice, first.required_tool, first.is_parallel) == ("required", "weather", False)
    assert first.sampling.thinking_budget == 99
    assert (second.tool_choice, second.is_parallel, second.tool_dialect, second.thinking) == (
        "auto",
        True,
        "python",
        True,
    )
    assert second.sampling.thinking_budget == 512
    assert third.tool_choice == "none"
    assert [tool.is_strict for asked in (first, fourth) for tool in asked.tools] == [False, True]


def test_an_answers_calls_and_their_results_go_back_in(client: openai.OpenAI, worker: ScriptedWorker) -> None:
    """The loop that every client runs."""
    asked: list[Any] = ask("call")
    message = client.chat.completions.create(model=MODEL, messages=asked, tools=[WEATHER]).choices[0].message
    asked.append(message)
    asked += [{"role": "tool", "tool_call_id": call.id, "content": "rain"} for call in message.tool_calls or []]
    answer = client.chat.completions.create(model=MODEL, messages=asked, tools=[WEATHER])
    assert answer.choices[0].message.content == "Hello, wörld 🦊"
    turns = worker.requests[-1].messages
    assert [turn.role for turn in turns] == [Role.USER, Role.ASSISTANT, Role.TOOL, Role.TOOL]
    assert [(call.id, call.name, json.loads(call.arguments)) for call in turns[1].tool_calls] == CALLS
    assert [(turn.tool_call_id, turn.content) for turn in turns[2:]] == [("call_a", "rain"), ("call_b", "rain")]


CALL = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("messages", "param", "said"),
    [
        (
            [*ask("x"), {"role": "tool", "tool_call_id": "c", "content": "r"}],
            "messages[1]",
            "expected user or assistant",
        ),
        ([*ask("x"), {"role": "assistant", "tool_calls": [CALL]}, *ask("y")], "messages[2]", "expected tool"),
    ],
)
def test_turns_out_of_order_are_refused_with_what_was_expected(
    client: openai.OpenAI, messages: Any, param: str, said: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=said) as refused:
        client.chat.completions.create(model=MODEL, messages=messages, tools=[WEATHER])
    assert refused.value.param == param


def test_a_schema_that_cannot_be_followed_is_refused_where_it_must_be(client: openai.OpenAI) -> None:
    function: Any = {"name": "f", "parameters": {"properties": {"a": {"not": {}}}}}
    asked: Any = {"model": MODEL, "messages": ask("hello"), "tools": [{"type": "function", "function": function}]}
    assert client.chat.completions.create(**asked).choices[0].message.content
    held = client.chat.completions.create(**asked, tool_choice="required")
    assert held.model_extra["warnings"] == ["A call of f is held to its schema but for what cannot be enforced: not."]
    function["strict"] = True
    with pytest.raises(openai.BadRequestError, match=r"tool f: .*not") as refused:
        client.chat.completions.create(**asked, tool_choice="required")
    assert refused.value.param == "tools"


def test_a_call_cut_by_the_limit_ends_with_length_and_is_the_same_whole_and_streamed(client: openai.OpenAI) -> None:
    for text, told in (("call cut", [("call_a", "weather", '{"city": "Os')]), ("call cut before its name", [])):
        (choice,) = create(client, text, tool_choice="required").choices
        calls = [(one.id, one.function.name, one.function.arguments) for one in choice.message.tool_calls or []]
        assert (calls, choice.message.content or "", choice.finish_reason) == (told, "", "length")
        chunks = [chunk.choices[0] for chunk in create(client, text, tool_choice="required", stream=True)]
        pieces = [piece for chunk in chunks for piece in chunk.delta.tool_calls or []]
        assert [piece.id for piece in pieces if piece.id] == [id_ for id_, _, _ in told]
        assert "".join(piece.function.arguments for piece in pieces) == "".join(text for _, _, text in told)
        assert "".join(chunk.delta.content or "" for chunk in chunks) == ""
        assert chunks[-1].finish_reason == "length"


def test_a_good_call_before_one_that_is_cut_is_no_reason_to_call_the_answer_whole(client: openai.OpenAI) -> None:
    (choice,) = create(client, "two calls, one cut").choices
    assert ([one.function.name for one in choice.message.tool_calls], choice.finish_reason) == (
        ["weather", "weather"],
        "length",
    )
