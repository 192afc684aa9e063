"""What a model writes costs the parsers in proportion to its length, whole and piece by piece, however odd it is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from inference.coordination.log_view import tool_calls_of
from inference.messages.generation import ToolSpec
from inference.output.deltas import OutputPipeline, merged
from inference.output.thinking import ThinkTags
from inference.output.tool_calls import Dialect, ToolCallParser
from tests.cost.meter import assert_bounded, filled

TOOLS = (ToolSpec(name="add", parameters='{"properties": {"a": {}}}'),)
ARGUMENTS = '<tool_call>{"name": "add", "arguments": '


def after(head: str, piece: str) -> Callable[[int], str]:
    return lambda size: head + filled(piece, size - len(head))


XML = {
    "tags that never end": after("", "<tool_cal"),
    "brackets": after("", "<"),
    "calls that fail": after("", '<tool_call>{"name": "nope"}</tool_call>'),
    "calls": after("", '<tool_call>{"name": "add"}</tool_call>'),
    "a string": after(ARGUMENTS + '{"a": "', "2026-11-28T12:00:00Z \\u0041\\"),
    "deep arguments": after(ARGUMENTS, "[["),
    "a key": after('<tool_call>{"', "k"),
    "a name": after('<tool_call>{"name": "', "n"),
    "arguments as a string": after('<tool_call>{"name": "add", "arguments": "', '{\\"a\\":1'),
    "white space in a call": after("<tool_call>", " \n"),
    "white space behind a call": after('<tool_call>{"name": "add"}', " \n"),
    "white space": after("", " \n"),
    "thoughts": after("", "<think> </think>"),
    "white space in a thought": after("<think>x", " \n"),
    "nearly a stop string": after("", "STO"),
    "code fences": after("", "```\nx<\n"),
}
PYTHON = {
    "brackets": after("<code>", "(["),
    "braces": after("<code>add(", "{"),
    "a sum": after("<code>add(a=", "1+"),
    "signs": after("<code>add(a=", "-"),
    "a number": after("<code>add(a=", "9"),
    "strings": after("<code>add(a=", "'x' "),
    "quotes": after("<code>", "'''"),
    "escapes": after("<code>'", "\\"),
    "statements": after("<code>", "add(a=1)\n"),
    "statements that fail": after("<code>", "nope()\n"),
    "fences": after("", "```python\nadd()\n```\n"),
    "conditions": after("<code>", "if x:\n "),
}


def read(text: str, dialect: Dialect, num_bytes: int, *, is_cut: bool) -> None:
    data = text.encode()
    pieces = [data[at : at + num_bytes] for at in range(0, len(data), num_bytes)]
    chain = OutputPipeline(
        pieces.__getitem__,
        think_tags=ThinkTags("<think>", "</think>"),
        calls=ToolCallParser(TOOLS, id_of=str, dialect=dialect),
        stop=("STOP", "s" * 200 + "t"),
    )
    deltas = [delta for number in range(len(pieces)) for delta in chain.push(number)] + chain.flush(is_cut=is_cut)
    tool_calls_of(merged(deltas))


@pytest.mark.parametrize(
    ("dialect", "name"), [*(("xml", name) for name in XML), *(("python", name) for name in PYTHON)]
)
def test_an_answer_costs_in_proportion_to_its_length(dialect: Dialect, name: str) -> None:
    make = (XML if dialect == "xml" else PYTHON)[name]
    assert_bounded(make, lambda text: read(text, dialect, 4, is_cut=False), ms_per_kb=40, sizes=(2_048, 16_384))


@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize("dialect", ["xml", "python"])
def test_an_answer_in_one_piece_costs_no_more(dialect: Dialect, is_cut: bool) -> None:
    head = ARGUMENTS + '{"a": "' if dialect == "xml" else "<code>add(a='"
    assert_bounded(after(head, "ab<tool "), lambda text: read(text, dialect, 10**6, is_cut=is_cut), ms_per_kb=40)
