"""Hostile JSON schemas and bodies of requests cost in proportion to their size, and little."""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from chatsite.api import schemas
from inference.errors import InvalidRequest
from inference.grammar import json_schema, patterns, tool_grammar
from inference.grammar.matcher import JsonConstraint
from inference.grammar.relaxation import relaxed
from inference.messages.generation import ChatMessage, GenerationRequest, Role, ToolSpec
from inference.prompt import messages
from inference.prompt.chat_template import ChatTemplate
from inference.prompt.kit import PromptKit
from tests.cost.meter import assert_bounded, cpu_seconds, filled
from tests.unit.test_placing import TEMPLATES
from tests.unit.test_tool_grammar import request

STRING = {"type": "string"}
Maker = Callable[[int], str]


def listed(head: str, item: Callable[[int], str], tail: str, *, separator: str = ",") -> Maker:
    """As many items as a text of that size has room for."""

    def make(size: int) -> str:
        parts: list[str] = []
        room = size - len(head) - len(tail)
        while room > 0:
            parts.append(item(len(parts)))
            room -= len(parts[-1]) + 1
        return head + separator.join(parts[:-1]) + tail

    return make


def pattern(piece: str) -> Maker:
    return lambda size: json.dumps({**STRING, "pattern": filled(piece, size - 40)})


SCHEMAS: dict[str, Maker] = {
    "deep": lambda size: '{"items":' * (size // 10) + "{}" + "}" * (size // 10),
    "deep cases": lambda size: '{"anyOf":[' * (size // 12) + "{}" + "]}" * (size // 12),
    "references in a circle": listed(
        '{"$ref":"#/$defs/d0","$defs":{', lambda i: f'"d{i}":{{"anyOf":[{{"$ref":"#/$defs/d{i // 2}"}}]}}', "}}"
    ),
    "values": listed('{"enum":[', lambda i: f'"value {i}"', "]}"),
    "values of all lengths": lambda size: json.dumps({"enum": ["x" * i for i in range(int((2 * size) ** 0.5) - 20)]}),
    "needed properties": lambda size: json.dumps(
        {"type": "object", "properties": (names := {f"p{i}": STRING for i in range(size // 40)}), "required": [*names]}
    ),
    "optional properties": listed('{"properties":{', lambda i: f'"p{i}":{{}}', "}}"),
    "objects side by side": listed('{"anyOf":[', lambda i: f'{{"properties":{{"k{i}":{{}}}}}}', "]}"),
    "cases that exclude each other": listed('{"oneOf":[', lambda i: f'{{"properties":{{"k{i}":{{}}}}}}', "]}"),
    "cases times cases": listed(
        '{"allOf":[', lambda i: f'{{"anyOf":[{{"required":["a{i}"]}},{{"required":["b{i}"]}}]}}', "]}"
    ),
    "times of day": listed('{"prefixItems":[', lambda i: '{"type":"string","format":"date-time"}', "]}"),
    "formats": listed('{"prefixItems":[', lambda i: f'{{"type":"string","format":"f{i}"}}', "]}"),
    "bad patterns": listed('{"prefixItems":[', lambda i: f'{{"type":"string","pattern":"({i}"}}', "]}"),
    "look-aheads": listed('{"prefixItems":[', lambda i: f'{{"pattern":"^(?=.*a{i})(?=.*b)[a-z]+$"}}', "]}"),
    "patterns of keys": listed('{"patternProperties":{', lambda i: f'"^k{i}(":{{}}', "}}"),
    "unknown keywords": listed('{"properties":{', lambda i: f'"p{i}":{{"if":{{}},"not":{{}}}}', "}}"),
    "bounds": listed('{"prefixItems":[', lambda i: f'{{"type":"integer","minimum":-{2**63 + i}}}', "]}"),
    "alternatives": listed('{"type":"string","pattern":"', lambda i: f"word{i}", '"}', separator="|"),
    "groups": pattern("((a+)+"),
    "look-aheads without an end": pattern("(?="),
    "look-aheads in a row": lambda size: json.dumps({"pattern": "^" + filled("(?=a)", size - 40)}),
    "classes without an end": pattern("[^"),
    "escapes": pattern("\\"),
}


def follow(schema: str) -> None:
    relaxed.cache_clear()
    with contextlib.suppress(InvalidRequest):
        relaxed(schema)


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_costs_in_proportion_to_its_size(name: str) -> None:
    assert_bounded(SCHEMAS[name], follow, ms_per_kb=40)


SMALL: list[Any] = [
    {**STRING, "maxLength": 10**9},
    {**STRING, "minLength": 10**9},
    {"type": "array", "maxItems": 10**9},
    {"type": "array", "minItems": 10**9},
    {"type": "array", "minItems": 10**4, "items": {**STRING, "maxLength": 10**4}},
    {"type": "object", "minProperties": 10**6},
    {"type": "integer", "minimum": -(10**300), "maximum": 10**300},
    {"type": "number", "multipleOf": 1e-15},
    {"type": "integer", "multipleOf": 999_999_999_999_989},
    {**STRING, "pattern": "^((a+)+)+$"},
    {**STRING, "pattern": "(((a{1,1000}){1,1000}){1,1000}){1,1000}"},
    {**STRING, "pattern": "^(.*a){60}$"},
    {**STRING, "pattern": "(.*a.{200}){3}"},
    {**STRING, "pattern": "^(?=.*a.{20}b)(?=.*c.{20}d).*e.{20}f"},
    {"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}, {"type": "integer"}]}}},
    {
        "$ref": "#/$defs/d0",
        "$defs": {**{f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 9} for i in range(30)}, "d30": STRING},
    },
]


@pytest.mark.parametrize("schema", SMALL, ids=lambda schema: json.dumps(schema)[:60])
def test_a_few_characters_cost_little_to_compile_and_at_every_token(schema: Any) -> None:
    """The engine's thread waits for what is done at a token: every other answer waits with it."""
    assert cpu_seconds(lambda: follow(json.dumps(schema))) < 1.0
    try:
        held = relaxed(json.dumps(schema)).schema
        constraint = JsonConstraint(json_schema.compiled(held, json_schema.BYTES), 257)
    except InvalidRequest:
        return
    choose = random.Random(1)
    worst = 0.0
    for _ in range(200):
        allowed = np.flatnonzero(np.unpackbits(constraint.mask().view(np.uint8), bitorder="little")[:256])
        if not len(allowed):
            break
        token = int(choose.choice([*allowed, *(byte for byte in b"aaa" if byte in allowed)]))
        try:
            worst = max(worst, _seconds(constraint, token))
        except InvalidRequest:  # beyond the limits: the answer ends, nobody waits
            break
    assert worst < 0.1


def _seconds(constraint: JsonConstraint, token: int) -> float:
    begun = time.thread_time()
    constraint.accept(token)
    return time.thread_time() - begun


def test_the_schemas_of_all_tools_together_are_bounded() -> None:
    big = json.dumps({"properties": {"a": {"enum": ["x" * 40_000]}}})
    tools = tuple(ToolSpec(name=f"t{i}", parameters=big) for i in range(40))
    asked = request(tools=tools)
    with pytest.raises(InvalidRequest, match="200,000 characters"):
        tool_grammar.check(asked)
    strict = request(
        tool_choice="auto", tools=tuple(ToolSpec(name=t.name, parameters=big, is_strict=True) for t in tools)
    )
    with pytest.raises(InvalidRequest, match="200,000 characters"):
        tool_grammar.check(strict)


PATTERNS = ("(", "(?=", "(?=a)", "[", "[^]", "\\", "\\b", "(?<!x)(", "a|", "(?=(?!", ")")


@pytest.mark.parametrize("piece", PATTERNS)
def test_reading_a_pattern_is_linear(piece: str) -> None:
    def read(text: str) -> None:
        patterns.without_assertions(text)
        patterns.parted("^(?=a)" + text)

    assert_bounded(lambda size: filled(piece, size), read, ms_per_kb=8)


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}).encode()


def called(num: int) -> list[Any]:
    """Calls, and their results from the last to the first."""
    calls = [{"id": f"c{i}", "function": {"name": "f", "arguments": "{}"}} for i in range(num)]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "r"} for call in reversed(calls)]
    return [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": calls}, *results]


def function(name: str, **fields: Any) -> Any:
    return {"type": "function", "function": {"name": name, **fields}}


BODIES: dict[str, Callable[[int], bytes]] = {
    "deep": lambda size: b'{"model":"m","messages":[],"x":' + b"[" * size,
    "many messages": lambda size: body(messages=[{"role": "user", "content": "x"}] * (size // 34)),
    "many parts": lambda size: body(
        messages=[{"role": "user", "content": [{"type": "text", "text": "x"}] * (size // 30)}]
    ),
    "many tools": lambda size: body(tools=[function(f"f{i}") for i in range(size // 50)]),
    "a named tool": lambda size: body(
        tools=[function(f"f{i}") for i in range(size // 50)], tool_choice=function(f"f{size // 50 - 1}")
    ),
    "deep parameters": lambda size: body(tools=[function("f", parameters={"x": "[" * size})]),
    "stop strings": lambda size: body(stop=["a"] * (size // 5)),
    "biases": lambda size: body(logit_bias={str(i): 1 for i in range(size // 10)}),
    "a long number": lambda size: b'{"model":"m","messages":[],"max_tokens":' + b"9" * size + b"}",
    "a long role": lambda size: body(messages=[{"role": "r" * size, "content": "x"}]),
    "deep arguments": lambda size: body(
        messages=[
            {"role": "user", "content": "x"},
            {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "[" * size}}]},
        ]
    ),
    "many calls": lambda size: body(messages=called(size // 130)),
    "times in arguments": lambda size: body(
        messages=[
            {"role": "user", "content": "x"},
            {
                "role": "assistant",
                "tool_calls": [
                    {
                        "id": "c",
                        "function": {"name": "f", "arguments": json.dumps(["2026-11-28T12:00:00Z"] * (size // 25))},
                    }
                ],
            },
        ]
    ),
}


def read_body(data: bytes) -> None:
    with contextlib.suppress(InvalidRequest):
        asked = schemas.parse(data).check(max_completion_tokens=4096)
        made = GenerationRequest(
            id=request().id, model="m", user_key="u", messages=asked.chat_messages(), tools=asked.tool_specs()
        )
        messages.check_tools(made)
        messages.check(made.messages)


@pytest.mark.parametrize("name", BODIES)
def test_a_body_costs_in_proportion_to_its_size(name: str) -> None:
    assert_bounded(BODIES[name], read_body, ms_per_kb=4, sizes=(16_384, 524_288))


def test_a_refusal_does_not_repeat_what_was_sent() -> None:
    for data in (
        BODIES["a long role"](100_000),
        body(tools=[{"type": "t" * 100_000}]),
        body(tool_choice="c" * 100_000),
    ):
        with pytest.raises(InvalidRequest) as refused:
            schemas.parse(data).check(max_completion_tokens=4096)
        assert len(refused.value.message) < 400


@pytest.mark.parametrize("name", ["no system", "system first", "chatml"])
@pytest.mark.parametrize("role", [Role.SYSTEM, Role.USER, Role.TOOL])
def test_messages_that_join_cost_in_proportion(name: str, role: Role) -> None:
    kit = PromptKit(
        model="m", pre_tokenizer="gpt-2", tokens=("<s>",), token_types=b"\x03", merges=(), context_tokens=100,
        chat_template=TEMPLATES[name],
    )  # fmt: skip
    template = ChatTemplate(kit, lambda text: text)

    def render(text: str) -> None:
        said = [ChatMessage(role=role, content=text[at : at + 200]) for at in range(0, len(text), 200)]
        begun = [ChatMessage(role=Role.USER, content="x"), ChatMessage(role=Role.ASSISTANT, content="y")]
        template.render([*begun, *said], thinking=None, date="2026-11-28")

    assert_bounded(lambda size: filled("text ", size), render, ms_per_kb=8, sizes=(16_384, 262_144))
