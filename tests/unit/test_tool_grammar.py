"""Grammars that hold an answer to tool calls, and thoughts to their budget."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

from inference.coordination.log_view import tool_calls_of
from inference.errors import InvalidRequest
from inference.grammar import json_schema, tool_grammar
from inference.grammar.begun_calls import CallsOnceBegun
from inference.grammar.thinking import ThinkingConstraint
from inference.grammar.tool_grammar import Tags
from inference.messages.generation import GenerationRequest, SamplingParams, ToolSpec
from inference.output.thinking import ThinkTags
from inference.output.tool_calls import ToolCallParser

ADD = ToolSpec(
    name="add",
    parameters='{"$defs": {"n": {"type": "integer"}}, "properties": {"a": {"$ref": "#/$defs/n"}}, "required": ["a"], '
    '"additionalProperties": false}',
)
NOW = ToolSpec(name="now")


def request(**fields: Any) -> GenerationRequest:
    fields = {"tools": (ADD, NOW), "tool_choice": "required"} | fields
    return GenerationRequest(id=uuid4(), model="m", user_key="u", messages=(), **fields)


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def fits(text: str, **fields: Any) -> bool:
    """Whether `text` is a whole answer."""
    asked = request(**fields)
    matcher = tool_grammar.compiled(asked, json_schema.BYTES, Tags.of(None, None, tool_grammar.tags_of(asked)))
    data = list(text.encode())
    return bool(matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting())


def test_an_answer_is_one_or_more_calls_of_the_tools() -> None:
    assert fits(call("add", '{"a": 1}'))
    assert fits("\n\n" + call("now", "{}") + "\n" + call("add", '{"a": -3}'))
    for text in ("", "Hi", call("now", '{"a": 1}'), call("add", "{}"), call("no", "{}"), call("now", "{}") + " x"):
        assert not fits(text)


def test_choice_and_number_of_calls_are_kept() -> None:
    two = call("now", "{}") + "\n" + call("now", "{}")
    assert not fits(two, is_parallel=False)
    assert fits(call("now", "{}"), is_parallel=False)
    assert not fits(call("now", "{}"), required_tool="add")
    assert not fits(call("add", '{"a": 1}') + "\n" + call("add", '{"a": 1}'), required_tool="add")


def test_an_answer_in_json_may_be_calls_instead() -> None:
    schema = SamplingParams(json_schema='{"type": "object", "properties": {"x": {"const": 1}}, "required": ["x"]}')
    assert fits('{"x": 1}', tool_choice="auto", sampling=schema)
    assert fits(call("now", "{}"), tool_choice="auto", sampling=schema)
    assert not fits("Hi", tool_choice="auto", sampling=schema)
    assert not fits('{"x": 1}', sampling=schema)


def test_free_answers_are_not_held() -> None:
    assert not tool_grammar.is_held(request(tool_choice="auto"))
    assert not tool_grammar.is_held(request(tools=(), tool_choice="auto", sampling=SamplingParams(json_schema="{}")))
    tool_grammar.check(request(tool_choice="auto", tools=(ToolSpec(name="x", parameters='{"what": 1}'),)))


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        (
            {"tools": (ToolSpec(name="x", is_strict=True, parameters='{"properties": {"a": {"not": {}}}}'),)},
            "tools",
            "tool x: .* not",
        ),
        (
            {"tools": (ToolSpec(name="x", is_strict=True, parameters='{"properties": {"a": {"pattern": "("}}}'),)},
            "tools",
            "tool x: A pattern",
        ),
        ({"tools": (ToolSpec(name="x", parameters='{"x-guidance": {}}'),)}, "tools", "tool x: .*x-guidance"),
        (
            {"tool_dialect": "python", "tools": (ToolSpec(name="get-it"),)},
            "tools",
            "tool get-it has a name that Python cannot call",
        ),
        (
            {
                "tool_dialect": "python",
                "tools": (
                    ToolSpec(
                        name="x", is_strict=True, parameters='{"properties": {"a": {"allOf": [{"type": "string"}]}}}'
                    ),
                ),
            },
            "tools",
            "tool x: .*allOf",
        ),
        (
            {"tool_choice": "auto", "tools": (ToolSpec(name="x", is_strict=True, parameters='{"not": {}}'),)},
            "tools",
            "tool x: .* not",
        ),
    ],
)
def test_what_cannot_be_held_is_refused(fields: dict[str, Any], param: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said) as refused:
        tool_grammar.check(request(**fields))
    assert refused.value.param == param


OPEN, CLOSE, END, NUM = 256, 257, 258, 259
TAGS = ThinkTags("<think>", "</think>", OPEN, CLOSE)
TEXT_TAGS = ThinkTags("<think>", "</think>")


class Letters:
    """An inner constraint: a, then b, then the end."""

    def __init__(self) -> None:
        self.left = [*b"ab"]

    @property
    def is_complete(self) -> bool:
        return not self.left

    @property
    def is_open(self) -> bool:
        return False

    def mask(self) -> Any:
        mask = np.zeros((NUM + 31) // 32, np.uint32)
        for token in self.left[:1] or [END]:
            mask[token >> 5] |= np.uint32(1 << (token & 31))
        return mask

    def accept(self, token: int) -> None:
        assert token == self.left.pop(0)


def thinking(tags: ThinkTags = TAGS, **fields: Any) -> ThinkingConstraint:
    closing = [CLOSE] if tags.are_tokens else list(b"</think>")
    data = {"vocab_size": NUM, "end_tokens": [END]} | fields
    return ThinkingConstraint(tags, closing, lambda token: bytes([token]) if token < 256 else b"", **data)


def allowed(constraint: ThinkingConstraint) -> set[int]:
    bits = np.unpackbits(constraint.mask().view(np.uint8), bitorder="little")[:NUM]
    return set(np.flatnonzero(bits).tolist())


def feed(constraint: ThinkingConstraint, *tokens: int) -> ThinkingConstraint:
    for token in tokens:
        assert token in allowed(constraint)
        constraint.accept(token)
    return constraint


EVERYTHING = set(range(NUM))


def test_a_budget_forces_the_end_tag_and_no_other_thought() -> None:
    constraint = thinking(budget=3)
    assert constraint.is_open
    assert allowed(feed(constraint, *b"hi", OPEN, *b"abc")) == {CLOSE}
    assert not constraint.is_open
    assert allowed(feed(constraint, CLOSE)) == EVERYTHING - {OPEN}
    assert not constraint.is_complete


def test_a_budget_is_of_all_thoughts_together() -> None:
    constraint = feed(thinking(budget=3), OPEN, *b"ab", CLOSE, *b"answer")
    assert allowed(constraint) == EVERYTHING
    assert allowed(feed(constraint, OPEN, *b"c")) == {CLOSE}


def test_the_prompt_may_have_opened_the_thought() -> None:
    assert allowed(feed(thinking(budget=2, starts_inside=True), *b"ab")) == {CLOSE}


def test_tags_as_text_are_closed_letter_by_letter() -> None:
    constraint = feed(thinking(TEXT_TAGS, budget=2), *b"<think>ab")
    for byte in b"</think>":
        assert allowed(constraint) == {byte}
        constraint.accept(byte)
    assert allowed(constraint) == EVERYTHING
    assert allowed(feed(constraint, *b"<think>")) == {ord("<")}


def test_an_inner_constraint_begins_behind_the_thought() -> None:
    constraint = thinking(inner=Letters())
    assert allowed(constraint) == {ord("a"), OPEN}
    assert allowed(feed(constraint, OPEN, *b"b")) == EVERYTHING - {END}
    assert allowed(feed(constraint, CLOSE)) == {ord("a"), OPEN}
    assert allowed(feed(constraint, ord("a"))) == {ord("b")}
    assert feed(constraint, ord("b")).is_complete


def test_an_inner_constraint_and_a_budget() -> None:
    constraint = feed(thinking(inner=Letters(), budget=1), OPEN, ord("x"))
    assert allowed(constraint) == {CLOSE}
    assert allowed(feed(constraint, CLOSE)) == {ord("a")}


def test_a_long_answer_costs_no_new_masks() -> None:
    constraint = thinking(budget=1000)
    before = constraint.mask()
    feed(constraint, *b"text")
    assert constraint.mask() is before


def test_tool_tags_are_tokens_where_the_model_has_them() -> None:
    assert Tags.of(None, 5) == Tags() == Tags(json.dumps("<tool_call>"), json.dumps("</tool_call>"))
    assert Tags.of(7, 8) == Tags("<[7]>", "<[8]>")


# -- calls in Python

TREE = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "size": {"type": ["integer", "null"], "minimum": 0},
        "is_new": {"type": "boolean"},
        "kinds": {"type": "array", "items": {"enum": ["a", "\u00ff", None, True]}, "maxItems": 2},
        "inner": {"type": "object", "properties": {"k": {"type": "boolean"}}, "required": ["k"]},
        "tree": {"$ref": "#/$defs/tree"},
        "from": {"const": 1},
    },
    "required": ["name"],
    "additionalProperties": False,
    "$defs": {
        "tree": {
            "type": "object",
            "properties": {"v": {"type": "number"}, "next": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]}},
            "required": ["v"],
            "additionalProperties": False,
        }
    },
}
MANY = ToolSpec(name="many", parameters=json.dumps(TREE))


def fits_in_python(text: str, *tools: ToolSpec, **fields: Any) -> bool:
    return fits(f"<code>\n{text}\n</code>", tool_dialect="python", tools=tools or (MANY,), **fields)


@pytest.mark.parametrize(
    "arguments",
    [
        'name="hi"',
        'name="hi", size=None',
        'name="", size=3, is_new=False, kinds=["\u00ff", None], inner={"k": True}',
        'name="", kinds=[]',
        'name="", tree={"v": 1.5, "next": {"v": -2, "next": None}}',
        'name="", **{"from": 1}',
    ],
)
def test_a_call_in_python_follows_its_schema(arguments: str) -> None:
    assert fits_in_python(f"many({arguments})")


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "size=1",
        '"hi"',
        'name="too long"',
        'name="", size=-1',
        'name="", size="1"',
        'name="", is_new=true',
        'name="", is_new=1',
        'name="", kinds=["b"]',
        'name="", kinds=["a", "a", "a"]',
        'name="", inner={}',
        'name="", other=1',
        'name="", **{"from": 2}',
        'name="",',
        'name=open("x")',
    ],
)
def test_no_other_call_in_python_can_be_written(arguments: str) -> None:
    assert not fits_in_python(f"many({arguments})")


def test_choice_and_number_of_calls_are_kept_in_python_too() -> None:
    assert fits_in_python("now()\nadd(a=1)", ADD, NOW)
    assert not fits_in_python("now()\nadd(a=1)", ADD, NOW, is_parallel=False)
    assert not fits_in_python("now()", ADD, NOW, required_tool="add")
    assert fits_in_python("now()", ADD, NOW, ToolSpec(name="no-name"))
    any_value = ToolSpec(name="put", parameters='{"properties": {"value": {}}}')
    assert fits_in_python('put(value=[1, {"z": None}, "x", [True, {}]])', any_value)
    assert not fits_in_python("put(value=[1, null])", any_value)
    schema = SamplingParams(json_schema='{"const": 1}')
    assert fits("1", tool_choice="auto", tool_dialect="python", sampling=schema)


def test_every_walk_through_the_python_grammar_is_a_call_of_the_schema() -> None:
    """Read back by the output part: every argument is a literal, and as JSON it follows the same schema."""
    asked = request(tools=(MANY,), tool_dialect="python", is_parallel=False)
    as_json = request(tools=(MANY,), is_parallel=False)
    texts = set()
    for seed in range(40):
        random = np.random.default_rng(seed)
        matcher = tool_grammar.compiled(asked, json_schema.BYTES, Tags.of(None, None, tool_grammar.tags_of(asked)))
        data = bytearray()
        while not matcher.is_accepting():
            bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
            choices = np.flatnonzero(np.unpackbits(bits, bitorder="little")[:256])
            ends = [byte for byte in b'",)}]' if byte in choices]
            # Texts and lists come to an end sooner or later; bytes that begin no character are left out.
            usable = ends if ends and (random.random() < 0.4 or len(data) > 300) else choices[choices < 128]
            byte = int(random.choice(usable if len(usable) else choices))
            assert matcher.consume_token(byte)
            data.append(byte)
        texts.add(bytes(data))
        found = ToolCallParser((MANY,), id_of=str, dialect="python")
        deltas = found.feed(data.decode()) + found.flush()
        (made,) = tool_calls_of(deltas)
        assert fits(call("many", made.arguments), tools=as_json.tools, is_parallel=False), data
    assert len(texts) > 30


# -- calls that are strict once they begin

STRICT = ToolSpec(name="add", parameters=ADD.parameters, is_strict=True)


def test_strict_tools_are_held_only_where_the_model_is_free_and_writes_json() -> None:
    assert tool_grammar.is_strict(request(tool_choice="auto", tools=(STRICT, NOW)))
    for fields in (
        {"tools": (ADD, NOW), "tool_choice": "auto"},
        {"tools": (STRICT,), "tool_choice": "none"},
        {"tools": (STRICT,), "tool_choice": "auto", "tool_dialect": "python"},
    ):
        assert not tool_grammar.is_strict(request(**fields))
    assert tool_grammar.is_held(request(tools=(STRICT,)))


@pytest.mark.parametrize(
    ("rest", "is_one"),
    [
        (call("add", '{"a": 1}'), True),
        (call("add", "{}"), False),
        (call("add", '{"a": "x"}'), False),
        (call("now", '{"what": [1]}'), True),  # not strict: any object
        (call("other", "{}"), False),
        (call("add", '{"a": 1}') + " and on", False),
    ],
)
def test_what_follows_the_tag_of_a_strict_call(rest: str, is_one: bool) -> None:
    asked = request(tool_choice="auto", tools=(STRICT, NOW))
    matcher = tool_grammar.compiled_rest(asked, json_schema.BYTES, Tags())
    data = list(rest.removeprefix("<tool_call>").encode())
    assert (matcher.try_consume_tokens(data) == len(data) and matcher.is_stopped()) == is_one


class OneLetter(Letters):
    """A call: just x."""

    def restart(self) -> None:
        self.left = [*b"x"]


def test_a_free_answer_is_open_but_within_calls() -> None:
    constraint = CallsOnceBegun(ord("<"), OneLetter(), NUM)
    for _ in range(2):
        for byte in b"text":
            assert constraint.is_open
            constraint.accept(byte)
        constraint.accept(ord("<"))
        assert not constraint.is_open
        assert allowed(constraint) == {ord("x")}  # type: ignore[arg-type]
        constraint.accept(ord("x"))
        assert constraint.is_open
        assert not constraint.is_complete


def test_a_tag_within_a_thought_begins_no_call_and_thoughts_stay_free() -> None:
    constraint = thinking(inner=CallsOnceBegun(ord("<"), OneLetter(), NUM), budget=3, end_tokens=())
    feed(constraint, *b"hi", OPEN, *b"<y")
    assert constraint.is_open
    assert allowed(feed(constraint, *b"z")) == {CLOSE}
    assert allowed(feed(constraint, CLOSE)) == EVERYTHING - {OPEN}
    assert allowed(feed(constraint, ord("<"))) == {ord("x")}
    assert allowed(feed(constraint, ord("x"))) == EVERYTHING - {OPEN}
