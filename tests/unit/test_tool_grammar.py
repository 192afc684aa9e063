"""Grammars that hold an answer to tool calls, and thoughts to their budget."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

from inference.errors import InvalidRequest
from inference.grammar import json_schema, tool_grammar
from inference.grammar.thinking import ThinkingConstraint
from inference.grammar.tool_grammar import Tags
from inference.output.thinking import ThinkTags
from inference.protocol import GenerationRequest, SamplingParams, ToolSpec

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
    matcher = tool_grammar.compiled(request(**fields), json_schema.BYTES, Tags())
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
        ({"tools": (ToolSpec(name="x", parameters='{"properties": {"a": {"not": {}}}}'),)}, "tools", "tool x: .* not"),
        (
            {"tools": (ToolSpec(name="x", parameters='{"properties": {"a": {"pattern": "("}}}'),)},
            "tools",
            "tool x: A pattern",
        ),
        ({"tools": (ToolSpec(name="x", parameters='{"x-guidance": {}}'),)}, "tools", "tool x: .*x-guidance"),
        ({"tool_dialect": "python"}, "tool_choice", "Python"),
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
