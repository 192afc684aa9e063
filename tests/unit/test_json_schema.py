"""Which JSON schemas are refused and how fast, and that large ones which can be followed are."""

# ruff: noqa: F811  (fixtures are imported, then asked for by their names)

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from inference.errors import InvalidRequest
from inference.grammar import json_schema
from inference.grammar.matcher import Grammars
from inference.prompt.kit import PromptKit
from tests.unit.grammar_walk import Walk, grammars, kit  # noqa: F401  (fixtures)


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def referring(num_levels: int, keyword: str) -> dict[str, Any]:
    """Few characters that stand for very many schemas."""
    levels = {f"d{i}": {keyword: [{"$ref": f"#/$defs/d{i + 1}"}] * 8} for i in range(num_levels)}
    return {"$ref": "#/$defs/d0", "$defs": {**levels, f"d{num_levels}": {"type": "string"}}}


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ('{"a":NaN}', "not JSON"),
        ('{"const":"\\ud83d"}', "not JSON"),
        ('{"const":"\ud83d"}', "surrogate"),
        ("[]", "a schema is an object"),
        ("null", "a schema is an object"),
        ("false", "allows nothing"),
        ("[" * 50_000, "nested too deeply"),
        ({"not": {"type": "string"}}, "not supported here: not"),
        ({"type": "array", "uniqueItems": True}, "not supported here: uniqueItems"),
        ({"if": {}, "then": {}}, "not supported here: if, then"),
        ({"x-guidance": {"lenient": True}, "uniqueItems": True}, "not supported here: x-guidance"),
        ({"type": "strin"}, "strin"),
        ({"type": 5}, "type"),
        ({"properties": []}, "properties"),
        ({"type": "string", "format": "nope"}, "nope"),
        ({"type": "string", "pattern": "(["}, "pattern .* unclosed character class"),
        ({"type": "string", "pattern": "^(?=a)b"}, "look-around"),
        ({"type": "string", "minLength": 5, "maxLength": 2}, "minLength"),
        ({"$ref": "#"}, "nothing satisfies"),
        ({"$ref": "#/$defs/none"}, "does not exist"),
        ({"$ref": "http://127.0.0.1:1/x"}, "lies outside"),
        ({"$ref": "file:///etc/passwd"}, "lies outside"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "anyOf"),
        ({"type": "integer", "multipleOf": 999_999_999_999_989}, "too large or too complex"),
        # too large or too entangled
        ({"enum": ["x" * 1000] * 101}, "100,000 characters"),
        (nested(900), "nested too deeply"),
        ({"properties": {f"p{i}": {} for i in range(500)}}, "500 optional properties"),
        ({"allOf": [{"type": "string", "pattern": f".*a.{{{i}}}b.*"} for i in range(40)]}, "40 patterns"),
        ({"type": "object", "patternProperties": {f"^k{i}x$": {} for i in range(800)}}, "patternProperties"),
        (
            {
                "type": "array",
                "prefixItems": [{"type": "string", "pattern": f"a{i}", "maxLength": 9} for i in range(200)],
            },
            "several patterns",
        ),
        (
            {
                "allOf": [
                    {"type": "string", "pattern": "a", "maxLength": 5},
                    {"anyOf": [{"minLength": i} for i in range(500)]},
                ]
            },
            "several patterns",
        ),
        (
            {
                "allOf": [
                    {"anyOf": [{"required": [f"p{i}"]}, {"properties": {f"q{i}": {"type": "null"}}}]} for i in range(20)
                ]
            },
            "too large or too complex",
        ),
    ],
)
def test_a_schema_that_cannot_be_followed_is_refused_at_once_in_one_sentence(schema: Any, says: str) -> None:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    began = time.monotonic()
    with pytest.raises(InvalidRequest, match=says) as caught:
        json_schema.check(text)
    assert time.monotonic() - began < 5.0
    assert caught.value.param == "response_format"
    assert caught.value.message.endswith(".")
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    "schema",
    [
        nested(30),
        referring(20, "anyOf"),
        referring(20, "allOf"),
        {"enum": [f"value {i}" for i in range(5_000)]},
        {"type": "string", "pattern": "^(a|ab|abc){1,10000}$"},
        {"type": "string", "pattern": "(((a{1,1000}){1,1000}){1,1000}){1,1000}"},
        {"type": "string", "pattern": "^(.*a.{200}b.*c.{200})$"},
        {"type": "string", "maxLength": 1_000_000},
        {"type": "array", "items": {"type": "integer"}, "minItems": 10_000, "maxItems": 1_000_000},
        {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(400)}},
        {"properties": {f"p{i}": {} for i in range(2_000)}, "required": [f"p{i}" for i in range(2_000)]},
        {"const": "x" * 90_000},
        {"$schema": "http://json-schema.org/draft-07/schema#", "title": "t", "default": 1, "examples": [2]},
    ],
    ids=lambda schema: json.dumps(schema)[:40],
)
def test_large_schemas_that_can_be_followed_are_and_no_token_takes_long(
    kit: PromptKit, grammars: Grammars, schema: Any
) -> None:
    text = json.dumps(schema)
    began = time.monotonic()
    json_schema.check(text)
    assert time.monotonic() - began < 5.0
    constraint = grammars.constraint(text)
    walk = Walk(kit, 2)
    cpu_seconds = []
    for _ in range(60):
        choices = [token for token in walk.allowed(constraint) if token not in kit.end_tokens]
        if constraint.is_complete or not choices:
            break
        started = time.thread_time()
        try:
            constraint.accept(walk.random.choice(choices))
        except InvalidRequest:  # a bound of the engine's time was reached
            break
        cpu_seconds.append(time.thread_time() - started)
    assert max(cpu_seconds) < 0.05
