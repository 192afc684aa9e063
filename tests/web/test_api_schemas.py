"""Bodies of `/v1/chat/completions`: what is taken, what is refused and how the refusal names its field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from chatsite.api import schemas
from inference.errors import InvalidRequest
from inference.protocol import ChatMessage, Role

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
        ]
    )
    assert body.chat_messages() == (
        ChatMessage(role=Role.SYSTEM, content="Be brief."),
        ChatMessage(role=Role.USER, content="ab"),
        ChatMessage(role=Role.ASSISTANT, content="c"),
        ChatMessage(role=Role.USER, content=""),
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
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"functions": [{}]}, "functions"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"logprobs": True}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logit_bias": {"1": 100}}, "logit_bias"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"messages": []}, "messages"),
        ({"model": ""}, "model"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": CAP + 1}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"temperature": 2.5}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": ""}, "stop"),
        ({"seed": 2**70}, "seed"),
        ({"messages": [{"role": "tool", "content": "1"}]}, "messages[0].role"),
        ({"messages": [{"role": "robot", "content": "1"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]}, "messages[0].tool_calls"),
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
        ({"reasoning_effort": "high"}, True),
        ({"chat_template_kwargs": {"enable_thinking": False}}, False),
        ({"chat_template_kwargs": {"enable_thinking": True, "other": 1}, "reasoning_effort": "none"}, True),
        ({"thinking": False, "chat_template_kwargs": {"enable_thinking": True}}, False),
    ],
)
def test_three_ways_to_say_whether_to_think(fields: dict[str, Any], wants: bool | None) -> None:
    assert parsed(**fields).wants_thinking is wants


def test_a_cache_key_is_kept_apart_by_user_and_not_stored_as_sent() -> None:
    body = parsed(prompt_cache_key="secret thread")
    assert body.conversation_key("u1") != body.conversation_key("u2")
    assert "secret" not in body.conversation_key("u1")
    assert parsed().conversation_key("u1") == ""
