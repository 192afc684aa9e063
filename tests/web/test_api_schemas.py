"""Bodies of `/v1/chat/completions`: what is taken, what is refused and how the refusal names its field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from chatsite.api import schemas
from inference.errors import InvalidRequest
from inference.messages.generation import ChatMessage, Role, ToolCall

CAP = 4096


def parsed(**fields: Any) -> schemas.ChatCompletionRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], **fields}
    return schemas.parse(json.dumps(body).encode()).check(max_completion_tokens=CAP)


def refusal(**fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parsed(**fields)
    return caught.value


def test_roles_and_text_parts_become_chat_messages() -> None:
    body = parsed(
        messages=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": "c", "name": "ignored"},
            {"role": "user", "content": ""},
            {"role": "assistant", "content": None},
        ]
    )
    assert body.chat_messages() == (
        ChatMessage(role=Role.SYSTEM, content="Be brief."),
        ChatMessage(role=Role.USER, content="ab"),
        ChatMessage(role=Role.ASSISTANT, content="c"),
        ChatMessage(role=Role.USER, content=""),
        ChatMessage(role=Role.ASSISTANT, content=""),
    )


def test_unknown_parameters_are_ignored_and_null_means_absent() -> None:
    body = parsed(store=True, metadata={"a": [1]}, temperature=None, stop=None, n=None, stream=None, tools=None)
    assert body.sampling(CAP).temperature is None
    assert not body.is_stream


def test_every_sampling_parameter_arrives() -> None:
    fields = {
        "temperature": 1,
        "top_p": 0.5,
        "top_k": 7,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "presence_penalty": -1.0,
        "frequency_penalty": 2,
        "typical_p": 0.9,
        "dry_multiplier": 0.8,
        "dry_base": 1.75,
        "dry_allowed_length": 2,
        "ignore_eos": True,
        "seed": 42,
    }
    sampling = parsed(**fields, stop=["a", "b"], max_tokens=9).sampling(CAP)
    assert {name: getattr(sampling, name) for name in fields} == fields
    assert sampling.stop == ("a", "b")
    assert sampling.max_tokens == 9


def test_the_newer_name_of_the_limit_wins_and_the_sites_cap_is_the_default() -> None:
    assert parsed(max_tokens=9, max_completion_tokens=5).sampling(CAP).max_tokens == 5
    assert parsed().sampling(CAP).max_tokens == CAP
    assert parsed(stop="x").sampling(CAP).stop == ("x",)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2}, "n"),
        ({"n": 0}, "n"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0]"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"functions": [{}]}, "functions"),
        ({"function_call": "auto"}, "function_call"),
        ({"reasoning_effort": "utmost"}, "reasoning_effort"),
        ({"thinking_budget": -1}, "thinking_budget"),
        ({"response_format": {"type": "grammar"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.name"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": None}}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}}, "response_format"),
        ({"reasoning": {"effort": "utmost"}}, "reasoning.effort"),
        ({"thinking": {"type": "perhaps"}}, "thinking.type"),
        ({"thinking": {}}, "thinking.type"),
        ({"enable_thinking": "no"}, "enable_thinking"),
        ({"response_format": "json"}, "response_format"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"top_logprobs": 3, "logprobs": False}, "top_logprobs"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"top_logprobs": -1, "logprobs": True}, "top_logprobs"),
        ({"logprobs": 5}, "logprobs"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"logit_bias": {"1": -100.5}}, "logit_bias"),
        ({"logit_bias": {"the": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"01": 1}}, "logit_bias"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
        ({"typical_p": 0}, "typical_p"),
        ({"dry_multiplier": -1}, "dry_multiplier"),
        ({"dry_base": 0.5}, "dry_base"),
        ({"dry_allowed_length": 0}, "dry_allowed_length"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"messages": []}, "messages"),
        ({"model": ""}, "model"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -5}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"temperature": 2.5}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": ""}, "stop"),
        ({"seed": 2**70}, "seed"),
        ({"messages": [{"role": "tool", "content": "1"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "function", "content": "1"}]}, "messages[0]"),
        ({"messages": [{"role": "assistant", "function_call": {}}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": "", "tool_calls": [{"id": "c"}]}]}, "messages[0].tool_calls"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "c", "type": "custom"}]}]},
            "messages[0].tool_calls[0]",
        ),
        ({"messages": [{"role": "robot", "content": "1"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]}, "messages[0].tool_calls[0].id"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0]",
        ),
        # wrong types
        ({"temperature": "hot"}, "temperature"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"stream": "yes"}, "stream"),
        ({"stop": [1]}, "stop[0]"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": ["Hi"]}, "messages[0]"),
        ({"messages": [{"content": "Hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"model": None}, "model"),
        ({"thinking": "yes"}, "thinking"),
        ({"chat_template_kwargs": {"enable_thinking": 1}}, "chat_template_kwargs.enable_thinking"),
    ],
)
def test_what_cannot_be_done_is_refused_by_the_name_of_its_field(fields: dict[str, Any], param: str) -> None:
    error = refusal(**fields)
    assert error.param == param
    assert error.message.endswith(".")


def test_a_bias_that_is_refused_is_named() -> None:
    assert "'the'" in refusal(logit_bias={"7": 1, "the": 1}).message


def test_biases_are_by_token_id() -> None:
    assert parsed(logit_bias={"7": -100, "0": 2.5}).sampling(CAP).logit_bias == {7: -100, 0: 2.5}
    assert parsed(logit_bias={}).sampling(CAP).logit_bias is None


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"logprobs": False}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 0}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
    ],
)
def test_logprobs_are_asked_for_by_two_fields(fields: dict[str, Any], expected: int | None) -> None:
    assert parsed(**fields).sampling(CAP).logprobs == expected


SCHEMA = {"type": "object", "properties": {"zoo": {}, "ape": {}}, "required": ["ape"]}


@pytest.mark.parametrize(
    ("response_format", "schema"),
    [
        (None, None),
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"type": "object"}),
        ({"type": "json_object", "schema": SCHEMA}, SCHEMA),
        ({"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}, SCHEMA),
        ({"type": "json_schema", "json_schema": {"name": "n-1_", "schema": {}, "description": "d"}}, {}),
        ({"type": "json_schema", "json_schema": {"name": "n", "schema": True, "strict": None}}, True),
    ],
)
def test_a_response_format_becomes_a_schema_with_its_properties_in_order(response_format: Any, schema: Any) -> None:
    text = parsed(response_format=response_format).sampling(CAP).json_schema
    assert (None if text is None else json.dumps(json.loads(text))) == (None if schema is None else json.dumps(schema))


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_limit_beyond_the_sites_own_means_as_much_as_there_is(name: str) -> None:
    for asked in (CAP + 1, 32_000, 10**12):
        body = parsed(**{name: asked})
        assert (body.sampling(CAP).max_tokens, body.is_cap_asked(CAP)) == (CAP, False)
    assert parsed(**{name: CAP}).is_cap_asked(CAP)


def test_json_is_written_without_thinking_first_unless_thinking_is_asked_for() -> None:
    assert parsed(response_format={"type": "json_object"}).wants_thinking is False
    for wish in ({"reasoning_effort": "low"}, {"thinking": True}, {"thinking": {"type": "enabled"}}):
        assert parsed(response_format={"type": "json_object"}, **wish).wants_thinking is True
    assert parsed(response_format={"type": "json_object"}, thinking={"type": "adaptive"}).wants_thinking is False
    assert parsed(response_format={"type": "json_object"}, thinking=False).wants_thinking is False
    assert parsed(response_format={"type": "text"}, thinking=True).wants_thinking is True
    assert parsed(response_format={"type": "text"}).wants_thinking is None


def test_a_missing_field_is_named() -> None:
    with pytest.raises(InvalidRequest, match=r"messages is missing\.") as caught:
        schemas.parse(b'{"model":"m"}')
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b"hello",
        b"\xff",
        b'{"model":"\xed\xa0\x80","messages":[]}',  # a lone surrogate in bytes
        b'{"model":"\\ud800","messages":[]}',  # and escaped
        b'{"x":' + b"[" * 100_000,
        b'{"temperature":NaN}',
        b'{"temperature":1e999}',
    ],
)
def test_what_is_no_json_object_is_an_invalid_request(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        schemas.parse(body)


def test_a_wrong_type_is_said_in_words() -> None:
    assert refusal(temperature="hot").message == "temperature must be a number, not a string."
    assert refusal(stop=5).message == "stop must be a string or a list, not a whole number."


@pytest.mark.parametrize(
    ("fields", "wants"),
    [
        ({}, None),
        ({"reasoning_effort": "none"}, False),
        ({"reasoning_effort": "high", "thinking_budget": 0}, False),
        ({"reasoning_effort": "high"}, True),
        ({"chat_template_kwargs": {"enable_thinking": False}}, False),
        ({"chat_template_kwargs": {"enable_thinking": True, "other": 1}, "reasoning_effort": "none"}, True),
        ({"thinking": False, "chat_template_kwargs": {"enable_thinking": True}}, False),
        ({"thinking": {"type": "disabled"}}, False),
        ({"thinking": {"type": "disabled"}, "reasoning_effort": "high"}, False),
        ({"thinking": {"type": "enabled", "budget_tokens": 900}}, True),
        ({"thinking": {"type": "adaptive"}, "reasoning_effort": "low"}, True),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, False),
        ({"reasoning_effort": "minimal"}, True),
        ({"chat_template_kwargs": {"thinking": False}}, False),
        ({"enable_thinking": False}, False),
        ({"reasoning": {"enabled": False}}, False),
        ({"reasoning": {"effort": "none"}}, False),
        ({"reasoning": {"effort": "low"}}, True),
        ({"reasoning": None, "thinking": None, "enable_thinking": None}, None),
    ],
)
def test_many_ways_to_say_whether_to_think(fields: dict[str, Any], wants: bool | None) -> None:
    assert parsed(**fields).wants_thinking is wants


def test_a_cache_key_is_kept_apart_by_user_and_not_stored_as_sent() -> None:
    body = parsed(prompt_cache_key="secret thread")
    assert body.conversation_key("u1") != body.conversation_key("u2")
    assert "secret" not in body.conversation_key("u1")
    assert parsed().conversation_key("u1") == ""


def test_effort_and_budget_bound_the_thought() -> None:
    def budget(**fields: Any) -> int | None:
        return parsed(**fields).sampling(CAP).thinking_budget

    assert budget() is budget(reasoning_effort="none") is budget(reasoning_effort="xhigh") is None
    low, medium, high = (budget(reasoning_effort=effort) for effort in ("low", "medium", "high"))
    assert low is not None and medium is not None and high is not None
    assert 0 < low < medium < high
    assert budget(reasoning_effort="low", thinking_budget=77) == 77
    assert budget(thinking_budget=0) is None
    assert budget(thinking={"type": "enabled", "budget_tokens": 900}, reasoning_effort="low") == 900
    assert budget(reasoning={"effort": "low"}) == low
    assert budget(reasoning={"max_tokens": 70}) == 70


def test_tools_are_taken_as_sent() -> None:
    function = {"name": "f", "description": "d", "parameters": {"type": "object", "x": [1.50, "é"]}, "strict": True}
    asked = parsed(tools=[{"type": "function", "function": function}, {"type": "function", "function": {"name": "g"}}])
    with_schema, bare = asked.tool_specs()
    assert (with_schema.name, with_schema.description) == ("f", "d")
    assert json.loads(with_schema.parameters) == function["parameters"]
    assert (bare.name, bare.description, bare.parameters) == ("g", "", "")
    assert (asked.choice.tool_choice, asked.choice.required_tool) == ("auto", "")
    named = parsed(
        tools=[{"type": "function", "function": {"name": "g"}}],
        tool_choice={"type": "function", "function": {"name": "g"}},
    )
    assert (named.choice.tool_choice, named.choice.required_tool) == ("required", "g")
    assert parsed(tool_choice="none", tools=[]).choice.tool_choice == "none"


def test_calls_and_results_become_turns() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    asked = parsed(
        messages=[
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "r"}]},
        ]
    )
    _, made, result = asked.chat_messages()
    assert (made.content, made.tool_calls) == ("", (ToolCall("c", "f", '{"a": 1}'),))
    assert (result.role, result.content, result.tool_call_id) == ("tool", "r", "c")
