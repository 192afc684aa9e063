"""Everyday JSON schemas are followed as far as an answer can be held to them, and what is lost is named."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inference.errors import InvalidRequest
from inference.grammar import json_schema, patterns, tool_grammar
from inference.grammar.relaxation import Relaxed, relaxed
from inference.messages.generation import ToolSpec
from tests.unit.test_tool_grammar import call, request
from tests.unit.test_tool_grammar import fits as answers

STRING = {"type": "string"}
INTEGER = {"type": "integer"}
PASSWORD = r"^(?=.*[A-Z])(?=.*\d)[A-Za-z\d]{4,}$"


def eased(schema: Any, *, is_strict: bool = False) -> Relaxed:
    return relaxed(json.dumps(schema), is_strict=is_strict)


def fits(schema: str, value: Any) -> bool:
    """Whether `value` is a whole answer to `schema`."""
    matcher = json_schema.compiled(schema, json_schema.BYTES)
    data = list(json.dumps(value).encode())
    return bool(matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting())


def record(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "losses", "good", "bad"),
    [
        # held to the letter, by other keywords where there are such
        ({"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}}, [], [{"a": 1}, {}], [{"A": 1}]),
        (
            {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": INTEGER},
            [],
            [{"a": 1}, {"a": 1, "b": 2}],
            [{"c": 1}, {"a": "x"}],
        ),
        ({"type": "string", "pattern": PASSWORD}, [], ["Ab1c"], ["ab1c", "Abcd", "A1"]),
        *(
            ({"type": "string", "format": name}, [], [good], ["no"])
            for name, good in {
                "date-time": "2026-11-28T12:00:00Z",
                "date": "2026-11-28",
                "email": "ada@example.org",
                "uuid": "123e4567-e89b-12d3-a456-426614174000",
                "ipv4": "10.0.0.1",
            }.items()
        ),
        ({"type": "array", "items": INTEGER, "minItems": 2}, [], [[1, 2]], [[1]]),
        ({"patternProperties": {"^x": STRING}, "additionalProperties": False}, [], [{"x1": "a"}], [{"x": 1}, {"y": 1}]),
        ({"const": {"not": 1}}, [], [{"not": 1}], [{}]),
        ({"allOf": [{"type": "object", "properties": {"a": STRING}}, {"required": ["a"]}]}, [], [{"a": ""}], [{}]),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"anyOf": [INTEGER, {"type": "null"}]}}}, [], [1, None], ["x"]),
        ({"type": "object", "properties": {"a": INTEGER}, "propertyNames": STRING}, [], [{"a": 1}], [{"a": ""}]),
        ({"$schema": "https://example.org/own", "type": "integer"}, [], [1], ["x"]),
        # held to the rest
        (
            {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
            ["minimum", "maximum"],
            [7, -7],
            ["x"],
        ),
        (
            record(**{f"p{i}": {"type": "string", "format": f"f{i}"} for i in range(20)}),
            [f'format "f{i}"' for i in range(20)],
            [{f"p{i}": "x" for i in range(20)}],
            [{}],
        ),
        ({"type": "array", "items": INTEGER, "uniqueItems": True}, ["uniqueItems"], [[1, 2], [1, 1]], [["a"]]),
        (record(a={"not": STRING}, b=INTEGER), ["not"], [{"a": "x", "b": 1}], [{"a": 1, "b": "x"}]),
        (
            {**record(a=STRING), "if": {"properties": {"a": {"const": "x"}}}, "then": {"required": ["b"]}, "else": {}},
            ["if", "then", "else"],
            [{"a": "x"}],
            [{"a": 1}],
        ),
        ({"type": "array", "contains": INTEGER, "minContains": 2}, ["contains", "minContains"], [["a"]], [{}]),
        ({**record(a=INTEGER), "dependentRequired": {"a": ["b"]}}, ["dependentRequired"], [{"a": 1}], [{"a": ""}]),
        ({**record(a=INTEGER), "unevaluatedProperties": False}, ["unevaluatedProperties"], [{"a": 1}], [{"b": 1}]),
        (record(a={"type": "string", "format": "regex"}), ['format "regex"'], [{"a": "x"}], [{"a": 1}]),
        ({"oneOf": [INTEGER, {"type": "number"}]}, ["oneOf (taken as anyOf)"], [1, 1.5], ["x"]),
        ({"type": "string", "pattern": r"^(?!.*foo)[a-z]+$"}, ["look-around in a pattern"], ["foo", "x"], ["X"]),
        ({"type": "string", "pattern": r"\bfoo\b"}, ["look-around in a pattern"], ["a foo"], ["bar"]),
        ({"type": "string", "pattern": r"^(a)\1$"}, ["pattern"], ["aa", "x"], [1]),
        ({"type": "string", "pattern": "("}, ["pattern"], ["x"], [1]),
        (
            {"type": "object", "patternProperties": {"^a": STRING, "b$": INTEGER}},
            ["patternProperties"],
            [{"ab": 1}],
            [[]],
        ),
        (
            {"type": "string", "pattern": r"^(?=.*[a-z])(?=.*[A-Z])(?=.*\d)(?=.*[@!])[A-Za-z\d@!]{8,}$"},
            ["look-around in a pattern"],
            ["Passwords"],
            ["password", "PASSWORD", "Pass"],
        ),
        (
            record(**{"not": {"type": "string", "format": "binary"}, "enum": {"enum": [{"if": 1}], "not": INTEGER}}),
            ["not", 'format "binary"'],
            [{"not": "x", "enum": {"if": 1}}],
            [{"not": "x", "enum": {"if": 2}}],
        ),
    ],
    ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict) else "",
)
def test_a_schema_is_held_as_far_as_can_be_and_what_is_not_is_named(
    schema: Any, losses: list[str], good: list[Any], bad: list[Any]
) -> None:
    held = eased(schema)
    assert sorted(held.losses) == sorted(losses)
    assert [value for value in good if not fits(held.schema, value)] == []
    assert [value for value in bad if fits(held.schema, value)] == []
    if losses:
        assert losses[0].split()[0] in held.warning("The answer")
        with pytest.raises(InvalidRequest):
            eased(schema, is_strict=True)
    else:
        assert held.warning("The answer") == ""
        assert eased(schema, is_strict=True) == held


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "string", "format": "nope"}, "nope"),
        ({"type": "string", "pattern": "^(?!x)y"}, "look-around"),
    ],
)
def test_a_strict_schema_is_refused_with_the_name_of_what_cannot_be_held(schema: Any, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says) as refused:
        eased(schema, is_strict=True)
    assert refused.value.param == "response_format"


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"type": "strin", "uniqueItems": True}, "strin"),
        ({"uniqueItems": True, "$ref": "http://127.0.0.1:1/x"}, "lies outside"),
        ({"type": "string", "minLength": 5, "maxLength": 2, "not": {}}, "minLength"),
        ({"not": {}, "properties": {f"p{i}": {} for i in range(500)}}, "500 optional"),
        ({"x-guidance": {"lenient": True}, "uniqueItems": True}, "x-guidance"),
    ],
)
def test_what_is_no_schema_or_beyond_a_limit_is_refused_all_the_same(schema: Any, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        eased(schema)


@pytest.mark.parametrize(
    ("pattern", "without"),
    [
        (r"a(?=b(c)[)])d", "ad"),
        (r"a(?<!\))b(?<=[(])c", "abc"),
        (r"\bx\B", "x"),
        (r"[\b(?=]\\b", r"[\b(?=]\\b"),
        (r"[]a](?=x)", r"[]a]"),
        (r"\(?=a", r"\(?=a"),
        ("(?=", ""),
        ("(?=(((", ""),
        ("\\", "\\"),
        ("[", "["),
        ("(?:a|(?:b))", "(?:a|(?:b))"),
    ],
)
def test_assertions_are_taken_out_of_a_pattern_and_nothing_else(pattern: str, without: str) -> None:
    assert patterns.without_assertions(pattern) == without


def test_only_look_aheads_at_the_beginning_can_be_told_as_patterns_of_their_own() -> None:
    assert patterns.parted(PASSWORD) == ("^(?:.*[A-Z])", r"^(?:.*\d)", r"^[A-Za-z\d]{4,}$")
    for other in ("^a(?=b)", "(?=a)b", "^(?=a(?!b))c", "^(?!a)b", "^(?=a)b|c", "abc", "^(?=a)(?<=b)c"):
        assert patterns.parted(other) is None


EASED = ToolSpec(
    name="x",
    parameters='{"properties": {"a": {"type": "array", "items": {"type": "integer"}, "uniqueItems": true, '
    '"allOf": [{"minItems": 1}]}}, "required": ["a"]}',
)


@pytest.mark.parametrize("dialect", ["", "python"])
def test_a_tool_that_is_not_strict_is_held_to_what_can_be_held(dialect: str) -> None:
    asked = {"tools": (EASED,), "tool_dialect": dialect}
    assert tool_grammar.check(request(**asked)) == (
        "A call of x is held to its schema but for what cannot be enforced: uniqueItems.",
    )
    good, bad = ('{"a": [1, 1]}', '{"a": "1"}') if not dialect else ("x(a=[1, 1])", 'x(a="1")')
    write = (lambda text: call("x", text)) if not dialect else "<code>\n{}\n</code>".format
    assert answers(write(good), **asked)
    assert not answers(write(bad), **asked)
