"""Tool calls are read alike for every cut of the text; a bad one fails alone and its text is kept."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.coordination.log_view import tool_calls_of
from inference.messages.generation import Delta, ToolSpec
from inference.output.deltas import OutputPipeline, merged
from inference.output.thinking import ThinkTags
from inference.output.tool_calls import Dialect, ToolCallParser

ADD_SCHEMA = '{"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}'
TOOLS = (
    ToolSpec(name="add", parameters=ADD_SCHEMA),
    ToolSpec(name="now"),
    ToolSpec(name="sh"),
    ToolSpec(name="write"),
)


@dataclass(frozen=True)
class Case:
    text: str
    calls: tuple[tuple[str, Any], ...] = ()
    content: str = ""
    errors: tuple[str, ...] = ()
    is_parallel: bool = True


def call(name: str, arguments: str = "{}") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


NOW = ("now", {})
CUT = '<tool_call>{"name": "add", "arguments": {"a": 1'
NAMELESS = '<tool_call>{"name": null, "arguments": {}}</tool_call>'
STRANGER = '<tool_call>{"name": "nope", "arguments": {}}</tool_call>'
ENDLESS = '<tool_call>{"name": "write", "arguments": {"text": "say "hi""}}</tool_call> and on'
QUOTED_BY_FENCE = '```xml\n<tool_call>{"name": "now"}</tool_call>\n```'

XML = {
    "plain": Case(call("add", '{"a": 1, "b": 2}'), (("add", {"a": 1, "b": 2}),)),
    "braces in a string": Case(call("sh", '{"cmd": "mkdir -p t/{a,b"}'), (("sh", {"cmd": "mkdir -p t/{a,b"}),)),
    "end tag in a string": Case(
        call("write", '{"text": "a </tool_call> b"}'), (("write", {"text": "a </tool_call> b"}),)
    ),
    "start tag in a string": Case(call("write", '{"text": "<tool_call>{"}'), (("write", {"text": "<tool_call>{"}),)),
    "thinking tags in a string": Case(
        call("write", '{"text": "<think>x</think>"}'), (("write", {"text": "<think>x</think>"}),)
    ),
    "escapes": Case(
        call("write", r'{"text": "\"}\\\" \u00e9\n</tool_call>"}'), (("write", {"text": '"}\\" é\n</tool_call>'}),)
    ),
    "raw line ends in a string": Case(call("write", '{"text": "a\n\tb"}'), (("write", {"text": "a\n\tb"}),)),
    "two calls": Case(call("now") + call("now"), (NOW, NOW)),
    "two calls on lines": Case(call("now") + "\n" + call("now") + "\n", (NOW, NOW)),
    "two objects in one tag": Case('<tool_call>{"name": "now"}\n{"name": "now"}</tool_call>', (NOW, NOW)),
    "arguments first": Case(
        '<tool_call>{"arguments": {"a": [1, {"b": null}]}, "name": "add"}</tool_call>',
        (("add", {"a": [1, {"b": None}]}),),
    ),
    "other members": Case(
        '<tool_call>{"id": 7, "type": "function", "name": "now", "arguments": {}}</tool_call>', (NOW,)
    ),
    "parameters for arguments": Case(
        '<tool_call>{"name": "add", "parameters": {"a": -1.5e3}}</tool_call>', (("add", {"a": -1500.0}),)
    ),
    "no arguments": Case('<tool_call>{"name": "now"}</tool_call>', (NOW,)),
    "null arguments": Case('<tool_call>{"name": "now", "arguments": null}</tool_call>', (NOW,)),
    "arguments as JSON text": Case(
        r'<tool_call>{"name": "add", "arguments": "{\"a\": 1}"}</tool_call>', (("add", {"a": 1}),)
    ),
    "end tag missing": Case('<tool_call>{"name": "now"}', (NOW,)),
    "end tag missing before text": Case('<tool_call>{"name": "now"} so', (NOW,), " so"),
    "end tag missing before a call": Case('<tool_call>{"name": "now"}\n' + call("now"), (NOW, NOW)),
    "text around": Case("Before " + call("now") + " after", (NOW,), "Before  after"),
    "white space alone": Case("\n\n" + call("now") + "\n\n", (NOW,)),
    "no call at all": Case("  just <tool> text <tool_cal\n", (), "  just <tool> text <tool_cal\n"),
    "stray end tag": Case("a </tool_call> b", (), "a </tool_call> b"),
    "quoted in a code fence": Case(QUOTED_BY_FENCE, (), QUOTED_BY_FENCE),
    "quoted in an open fence": Case("~~~~\n~~~\n" + call("now"), (), "~~~~\n~~~\n" + call("now")),
    "behind a closed fence": Case("```\nx\n```\n" + call("now"), (NOW,), "```\nx\n```\n"),
    "quoted in a line": Case(f"Write `{call('now')}`.", (), f"Write `{call('now')}`."),
    "one call at most": Case(call("now") + " x " + call("add"), (NOW,), is_parallel=False),
    "cut": Case(CUT, (), CUT, ("tool_call_truncated",)),
    "cut before its brace": Case("<tool_call>\n", (), "<tool_call>\n", ("tool_call_truncated",)),
    "cut in its tag": Case("so <tool_c", (), "so <tool_c"),
    "cut after a good one": Case(call("now") + CUT, (NOW,), CUT, ("tool_call_truncated",)),
    "no name": Case(NAMELESS, (), NAMELESS, ("tool_call_invalid",)),
    "missing name": Case(
        '<tool_call>{"arguments": {}}</tool_call>',
        (),
        '<tool_call>{"arguments": {}}</tool_call>',
        ("tool_call_invalid",),
    ),
    "unknown tool": Case(STRANGER, (), STRANGER, ("tool_unknown",)),
    "unknown between good ones": Case(call("now") + STRANGER + call("now"), (NOW, NOW), STRANGER, ("tool_unknown",)),
    "string breaks off": Case(ENDLESS + call("now"), (NOW,), ENDLESS, ("tool_call_invalid",)),
    "no JSON": Case("<tool_call>now()</tool_call>!", (), "<tool_call>now()</tool_call>!", ("tool_call_invalid",)),
    "a list of calls": Case(
        '<tool_call>[{"name": "now"}]</tool_call>',
        (),
        '<tool_call>[{"name": "now"}]</tool_call>',
        ("tool_call_invalid",),
    ),
    "arguments are a list": Case(call("add", "[1]"), (), call("add", "[1]"), ("tool_call_invalid",)),
    "comma too many": Case(call("add", '{"a": 1,}'), (), call("add", '{"a": 1,}'), ("tool_call_invalid",)),
    "NaN": Case(call("add", '{"a": NaN}'), (), call("add", '{"a": NaN}'), ("tool_call_invalid",)),
    "leading zero": Case(call("add", '{"a": 01}'), (), call("add", '{"a": 01}'), ("tool_call_invalid",)),
    "nested": Case(
        "<tool_call>" + call("now") + "</tool_call>", (NOW,), "<tool_call></tool_call>", ("tool_call_invalid",)
    ),
    "nested in arguments": Case(
        '<tool_call>{"name": "add", "arguments": ' + call("now") + "}",
        (NOW,),
        '<tool_call>{"name": "add", "arguments": }',
        ("tool_call_invalid",),
    ),
    "name twice": Case(
        '<tool_call>{"name": "now", "name": "now"}',
        (),
        '<tool_call>{"name": "now", "name": "now"}',
        ("tool_call_invalid",),
    ),
    "a character in two halves": Case(call("sh", r'{"cmd": "\ud83e\udd8a"}'), (("sh", {"cmd": "🦊"}),)),
    "half a character": Case(
        call("sh", r'{"cmd": "\ud83e!"}'), (), call("sh", r'{"cmd": "\ud83e!"}'), ("tool_call_invalid",)
    ),
    "the other half": Case(
        call("sh", r'{"cmd": "\udd8a"}'), (), call("sh", r'{"cmd": "\udd8a"}'), ("tool_call_invalid",)
    ),
    "too deep": Case(call("add", '{"a": ' + "[" * 80), (), call("add", '{"a": ' + "[" * 80), ("tool_call_invalid",)),
}

CODE = "<code>\n{}\n</code>"
FENCED = "```python\n{}\n```"
EXAMPLE = FENCED.format("import os\nprint(os.name)")

PYTHON = {
    "plain": Case(CODE.format("add(a=1, b=2)"), (("add", {"a": 1, "b": 2}),)),
    "in a fence": Case("Now:\n" + FENCED.format("add(a=1)"), (("add", {"a": 1}),), "Now:\n"),
    "arguments by place": Case(CODE.format("add(1, b=-2)"), (("add", {"a": 1, "b": -2}),)),
    "assigned and printed": Case(CODE.format("t = now()\nprint(add(a=1))"), (NOW, ("add", {"a": 1}))),
    "all literals": Case(
        CODE.format("write(a=None, b=[True, 1.5], c={'x': (1, 'é')}, **{'d-e': 2})"),
        (("write", {"a": None, "b": [True, 1.5], "c": {"x": [1, "é"]}, "d-e": 2}),),
    ),
    "end tag in a string": Case(CODE.format("write(text='a </code> b')"), (("write", {"text": "a </code> b"}),)),
    "fence in a string": Case(FENCED.format('write(text="""\n```\n""")'), (("write", {"text": "\n```\n"}),)),
    "quotes of all kinds": Case(
        CODE.format("write(a='', b=\"it's\", c='''x'y''', d=r'\\d</code>')"),
        (("write", {"a": "", "b": "it's", "c": "x'y", "d": "\\d</code>"}),),
    ),
    "unknown escape": Case(CODE.format(r"sh(cmd='grep \d \n')"), (("sh", {"cmd": "grep \\d \n"}),)),
    "comment": Case(CODE.format("# it's now\nnow()"), (NOW,)),
    "code for a person": Case(EXAMPLE, (), EXAMPLE),
    "other fences": Case("```json\n<code>now()</code>\n```", (), "```json\n<code>now()</code>\n```"),
    "quoted in a line": Case("Use `<code>` for it.", (), "Use `<code>` for it."),
    "cut": Case("<code>add(a=1", (), "<code>add(a=1", ("tool_call_truncated",)),
    "cut at the end": Case("<code>add(a=1)", (("add", {"a": 1}),)),
    "no Python": Case("<code>add a</code> so", (), "<code>add a</code> so", ("tool_call_invalid",)),
    "unknown": Case("<code>nope()</code>", (), "nope()\n", ("tool_unknown",)),
    "not literal": Case(CODE.format("x = now()\nadd(a=x)\nnow()"), (NOW, NOW), "add(a=x)\n", ("tool_call_invalid",)),
    "not run": Case(
        CODE.format("add(a=().__class__.__mro__)"), (), "add(a=().__class__.__mro__)\n", ("tool_call_invalid",)
    ),
    "too many arguments": Case(CODE.format("now(1)"), (), "now(1)\n", ("tool_call_invalid",)),
    "argument twice": Case(CODE.format("add(1, a=2)"), (), "add(1, a=2)\n", ("tool_call_invalid",)),
    "a set is no JSON": Case(CODE.format("add(a={1})"), (), "add(a={1})\n", ("tool_call_invalid",)),
    "one call at most": Case(CODE.format("now()\nnow()"), (NOW,), is_parallel=False),
    "half a character": Case(
        CODE.format(r"write(text='\ud83d')"), (), "write(text='\\ud83d')\n", ("tool_call_invalid",)
    ),
    "fences in a row": Case(
        EXAMPLE + "\n" + FENCED.format("now()") + "\n" + EXAMPLE, (NOW,), EXAMPLE + "\n\n" + EXAMPLE
    ),
}

ALL = [pytest.param("xml", case, id=name) for name, case in XML.items()]
ALL += [pytest.param("python", case, id=f"python: {name}") for name, case in PYTHON.items()]


def parser(dialect: Dialect = "xml", *, is_parallel: bool = True, is_forced: bool = False) -> ToolCallParser:
    return ToolCallParser(TOOLS, id_of="call-{}".format, dialect=dialect, is_parallel=is_parallel, is_forced=is_forced)


def run(pieces: Iterable[str], dialect: Dialect = "xml", *, is_parallel: bool = True) -> list[Delta]:
    reading = parser(dialect, is_parallel=is_parallel)
    deltas = [delta for piece in pieces for delta in reading.feed(piece)]
    return deltas + reading.flush()


def seen(deltas: Iterable[Delta]) -> tuple[str, tuple[tuple[str, str, str], ...], tuple[str, ...]]:
    deltas = list(deltas)
    calls = tuple((c.id, c.name, c.arguments) for c in tool_calls_of(deltas))
    errors = tuple(d.call.error.code for d in deltas if d.call is not None and d.call.error is not None)
    return "".join(d.text for d in deltas if d.kind == "content"), calls, errors


@pytest.mark.parametrize(("dialect", "case"), ALL)
def test_calls_content_and_errors_for_every_cut(dialect: Dialect, case: Case) -> None:
    whole = seen(run([case.text], dialect, is_parallel=case.is_parallel))
    content, calls, errors = whole
    assert content == case.content
    assert tuple((name, json.loads(arguments)) for _, name, arguments in calls) == case.calls
    assert errors == case.errors
    assert len({id_ for id_, _, _ in calls}) == len(calls)
    for cut in range(len(case.text)):
        pieces = [case.text[:cut], case.text[cut:]]
        assert seen(run(pieces, dialect, is_parallel=case.is_parallel)) == whole, pieces
    assert seen(run(case.text, dialect, is_parallel=case.is_parallel)) == whole


@pytest.mark.parametrize(("dialect", "case"), ALL)
@pytest.mark.parametrize("tags_are_tokens", [True, False])
def test_whole_chain_gives_the_same_for_bytes_as_tokens(dialect: Dialect, case: Case, tags_are_tokens: bool) -> None:
    """Thinking tags in a call are its text, whether the model has tokens for them or spells them."""
    text = case.text
    tokens: list[int] = list(text.encode())
    if tags_are_tokens:
        tokens = [token for part in _parts(text) for token in part]
    tags = ThinkTags("<think>", "</think>", 256, 257) if tags_are_tokens else ThinkTags("<think>", "</think>")
    chain = OutputPipeline(
        lambda token: bytes([token]) if token < 256 else b"",
        think_tags=tags,
        calls=parser(dialect, is_parallel=case.is_parallel),
    )
    deltas = [delta for token in tokens for delta in chain.push(token)] + chain.flush()
    content, calls, errors = seen(deltas)
    assert content == case.content or content == case.content.lstrip("\r\n")
    assert tuple((name, json.loads(arguments)) for _, name, arguments in calls) == case.calls
    assert errors == case.errors
    assert chain.num_calls == len(case.calls)
    assert chain.num_reasoning_tokens == 0


def _parts(text: str) -> Iterable[list[int]]:
    for number, part in enumerate(text.replace("<think>", "\0\x01").replace("</think>", "\0\x02").split("\0")):
        if number:
            yield [255 + ord(part[0])]
            part = part[1:]
        yield list(part.encode())


@pytest.mark.parametrize("is_forced", [False, True])
def test_a_call_cut_anywhere_leaves_no_markup_and_is_told_alike_for_every_split(is_forced: bool) -> None:
    text = call("add", '{"a": 1, "b": {"c": [2]}}') + "\n" + call("now")
    for cut in range(len(text)):
        told = []
        for split in {0, cut // 3, cut // 2, max(0, cut - 1)}:
            reading = parser(is_forced=is_forced)
            deltas = reading.feed(text[:split]) + reading.feed(text[split:cut]) + reading.flush(is_cut=True)
            told.append((seen(deltas), tool_calls_of(deltas, with_cut=True)))
        (content, good, errors), calls = told[0]
        assert told == [told[0]] * len(told)
        num_open = 0 if is_forced else len("<tool_call>") // 2  # of a tag: what is shorter may begin anything
        assert len(content.strip()) <= num_open
        assert all("tool_call" not in part for part in (content, *(one.arguments for one in calls)))
        assert all('{"a": 1, "b": {"c": [2]}}'.startswith(one.arguments) for one in calls[:1])
        assert set(errors) <= {"tool_call_truncated"}
        assert all(json.loads(arguments) is not None for _, _, arguments in good)


def test_a_call_whose_arguments_are_whole_is_made_though_its_end_is_cut() -> None:
    reading = parser()
    deltas = reading.feed('<tool_call>\n{"name": "add", "arguments": {"a": 1}') + reading.flush(is_cut=True)
    assert seen(deltas) == ("", (("call-0", "add", '{"a": 1}'),), ())


def test_of_a_cut_block_of_python_the_whole_statements_are_made() -> None:
    for text, calls in (
        ("<code>\nadd(a=1)\nadd(a=", [("add", '{"a": 1}')]),
        ("<code>\nadd(a=", []),
        ("<code>\nadd(a=1)\nnow()", [("add", '{"a": 1}'), ("now", "{}")]),
        ("<code>", []),
    ):
        reading = parser("python")
        deltas = reading.feed(text) + reading.flush(is_cut=True)
        content, found, _ = seen(deltas)
        assert (content, [(name, arguments) for _, name, arguments in found]) == ("", calls)


def test_arguments_are_streamed_as_they_are_written() -> None:
    reading = parser()
    shown = []
    for piece in ['<tool_call>{"name": "ad', 'd", "argu', 'ments": {"a": 1', ', "b"', ": 2}", "}</tool_call>"]:
        shown.append([(d.call.id, d.call.name, d.call.arguments) for d in merged(reading.feed(piece)) if d.call])
    assert shown == [[], [], [("call-0", "add", '{"a": 1')], [("", "", ', "b"')], [("", "", ": 2}")], []]


def test_calls_of_one_answer_are_numbered() -> None:
    deltas = merged(run([call("now") + STRANGER + call("add")]))
    assert [d.call.index for d in deltas if d.call] == [0, 1, 2]
    assert [c.id for c in tool_calls_of(deltas)] == ["call-0", "call-2"]


def test_a_call_that_fails_after_it_began_is_marked() -> None:
    deltas = merged(run([call("add", '{"a": 1,}')]))
    begun, failed = (d.call for d in deltas if d.call)
    assert (begun.index, begun.name, begun.arguments) == (0, "add", '{"a": 1,')
    assert (failed.index, failed.name, failed.error.code) == (0, "", "tool_call_invalid")
    assert tool_calls_of(deltas) == ()


def test_stop_strings_look_at_content_alone() -> None:
    def answer(text: str) -> tuple[str, int, bool]:
        chain = OutputPipeline(lambda token: bytes([token]), calls=parser(), stop=["STOP"])
        deltas = [delta for token in text.encode() for delta in chain.push(token)] + chain.flush()
        return seen(deltas)[0], chain.num_calls, chain.stopped

    assert answer(call("write", '{"text": "STOP"}') + "a STOP b" + call("now")) == ("a ", 1, True)
    assert answer('<tool_call>{"name": "STOP"}') == ('<tool_call>{"name": "', 0, True)


def test_text_held_for_a_stop_string_is_shown_with_the_only_call() -> None:
    chain = OutputPipeline(lambda token: bytes([token]), calls=parser(is_parallel=False), stop=["STOP"])
    deltas = [delta for token in f"x ST{call('now')}OP".encode() for delta in chain.push(token)] + chain.flush()
    assert (seen(deltas)[0], chain.num_calls, chain.stopped) == ("x ST", 1, True)


def test_calls_in_thoughts_are_thoughts() -> None:
    tags = ThinkTags("<think>", "</think>", 256, 257)
    chain = OutputPipeline(lambda token: bytes([token]) if token < 256 else b"", think_tags=tags, calls=parser())
    tokens = [256, *call("now").encode(), 257, *b"\n", *call("add").encode(), *b"\n", 256, *b"done", 257, *b"so"]
    deltas = [delta for token in tokens for delta in chain.push(token)] + chain.flush()
    content, calls, errors = seen(deltas)
    assert (content.strip(), [name for _, name, _ in calls], errors) == ("so", ["add"], ())
    assert "".join(d.text for d in deltas if d.kind == "reasoning") == call("now") + "done"


FRAGMENTS = [
    *("<tool_call>", "</tool_call>", '{"name": "add"', ', "arguments": ', '{"a": 1}', "}", "{", '"', "\\", "\n", " "),
    *("<code>", "</code>", "now()", "add(a=1, b='x')", "```python\n", "```", "'", "#", "é", "<", ",", ":", "[", "]"),
    *(
        '{"name": "now"}',
        '{"name": "no"}',
        "text",
        "`",
        "1",
        "null",
        "\t",
        "<tool_",
        "\u2028",
        "\r",
        "\\u00",
        "\\ud83d",
    ),
]


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=25), st.sampled_from(["xml", "python"]), st.booleans())
def test_streamed_equals_whole(pieces: list[str], dialect: Dialect, is_parallel: bool) -> None:
    text = "".join(pieces)
    whole = seen(run([text], dialect, is_parallel=is_parallel))
    assert seen(run(pieces, dialect, is_parallel=is_parallel)) == whole
    assert seen(run(text, dialect, is_parallel=is_parallel)) == whole
    for _, name, arguments in whole[1]:
        assert name in {tool.name for tool in TOOLS}
        assert isinstance(json.loads(arguments), dict)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), values, max_size=4), st.booleans(), st.integers(1, 7))
def test_any_arguments_come_through(arguments: dict[str, Any], is_ascii: bool, size: int) -> None:
    text = "x" + call("write", json.dumps(arguments, ensure_ascii=is_ascii)) + "y"
    content, calls, errors = seen(run(text[i : i + size] for i in range(0, len(text), size)))
    assert (content, errors) == ("xy", ())
    assert [json.loads(told) for _, _, told in calls] == [arguments]


@given(st.dictionaries(st.text(min_size=1), values, max_size=4), st.integers(1, 7))
def test_any_arguments_come_through_python(arguments: dict[str, Any], size: int) -> None:
    text = f"x<code>\nwrite(**{arguments!r})\n</code>y"
    content, calls, errors = seen(run((text[i : i + size] for i in range(0, len(text), size)), "python"))
    assert (content, errors) == ("xy", ())
    assert [json.loads(told) for _, _, told in calls] == [arguments]
