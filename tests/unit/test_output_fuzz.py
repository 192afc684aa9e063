"""Random outputs through the whole chain: no exception, and the same text however the tokens are cut."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from inference.coordination.log_view import tool_calls_of
from inference.messages.generation import Delta, ToolSpec
from inference.output.deltas import OutputPipeline
from inference.output.thinking import ThinkTags
from inference.output.tool_calls import Dialect, ToolCallParser

OPEN, CLOSE = "<think>", "</think>"
TOOLS = (
    ToolSpec(name="add", parameters='{"properties": {"a": {}, "b": {}}}'),
    ToolSpec(name="now"),
)
PIECES: list[bytes] = [
    *(text.encode() for text in (OPEN, CLOSE, "<tool_call>", "</tool_call>", "<code>", "</code>")),
    *(text.encode() for text in ('{"name": "add", "arguments": ', '{"a": 1}', "}", "{", '"', "\\", ":", ",", "[", "]")),
    *(
        text.encode()
        for text in ("now()", "add(a='x')", "add(1, b=[2])", "```python\n", "```\n", "```", "#", "'", "'''")
    ),
    *(text.encode() for text in ("STOP", "ST", "OP", "\n\n", "\n", " ", "text", "1", "null", "<", "th", "ink>", "</")),
    *(
        text.encode()
        for text in ("é", "👩‍💻", "\u2028", '{"name": "now"}', '{"name": "no"}', "`", "\0", "~~~\n", "\t", "\r")
    ),
    *(b"\xe2", b"\x82", b"\xac", b"\xff", b"\xf0\x9f", b"\xa6\x8a", b"\xed\xa0\x80", b"\\u00", b"\\ud83d", b"e9"),
]
CALL = b'<tool_call>\n{"name": "add", "arguments": {"a": "\xc3\xa9</tool_call>"}}\n</tool_call>'
STOPS: list[tuple[str, ...]] = [(), (), ("STOP",), ("\n\n",), ("OP", "STOP"), ("</",), ("<tool_call>",), ("é", "x")]


@dataclass(frozen=True)
class Setting:
    tags: ThinkTags | None
    starts_thinking: bool
    stop: tuple[str, ...]
    dialect: Dialect | None
    is_parallel: bool

    @classmethod
    def draw(cls, draw: random.Random) -> Setting:
        tags = draw.choice([None, ThinkTags(OPEN, CLOSE), ThinkTags(OPEN, CLOSE, 0, 1)])
        return cls(
            tags=tags,
            starts_thinking=tags is not None and draw.random() < 0.3,
            stop=draw.choice(STOPS),
            dialect=draw.choice([None, "xml", "xml", "python"]),
            is_parallel=draw.random() < 0.8,
        )

    def chain(self, pieces: Sequence[bytes]) -> OutputPipeline:
        calls = None
        if self.dialect is not None:
            calls = ToolCallParser(TOOLS, id_of=str, dialect=self.dialect, is_parallel=self.is_parallel)
        return OutputPipeline(
            pieces.__getitem__,
            think_tags=self.tags,
            starts_thinking=self.starts_thinking,
            calls=calls,
            stop=self.stop,
        )


def outcome(chain: OutputPipeline, tokens: Sequence[int]) -> tuple[object, ...]:
    deltas: list[Delta] = []
    for token in tokens:
        new = chain.push(token)
        assert all(delta.text or delta.call for delta in new)
        deltas += new
    deltas += chain.flush()
    content, reasoning = (
        "".join(delta.text for delta in deltas if delta.kind == kind) for kind in ("content", "reasoning")
    )
    assert "\0" not in content + reasoning
    calls = tool_calls_of(deltas)
    assert len(calls) == chain.num_calls
    for call in calls:
        assert call.name in ("add", "now")
        assert isinstance(json.loads(call.arguments), dict)
        call.arguments.encode()
    errors = [d.call.error.code for d in deltas if d.call is not None and d.call.error is not None]
    assert set(errors) <= {"tool_call_invalid", "tool_call_truncated", "tool_unknown"}
    assert chain.num_shown_chars == len(content)
    return content, reasoning, calls, errors, chain.stopped


def check_one(seed: int) -> None:
    """The same bytes, as they were drawn, one by one, and in large pieces. A tag that is a token stays one."""
    draw = random.Random(seed)
    setting = Setting.draw(draw)
    vocabulary = [*PIECES, CALL]
    tokens = [draw.randrange(len(PIECES)) for _ in range(draw.randrange(1, 40))]
    for _ in range(draw.randrange(3)):  # whole calls are rare among random pieces
        tokens.insert(draw.randrange(len(tokens) + 1), len(PIECES))
    expected = outcome(setting.chain(vocabulary), tokens)

    has_tag_tokens = setting.tags is not None and setting.tags.are_tokens
    pieces, in_bytes, in_lumps, lump = PIECES[:2], [], [], b""
    pieces += [bytes([byte]) for byte in range(256)]
    for token in tokens:
        if token < 2 and has_tag_tokens:
            in_bytes.append(token)
            pieces.append(lump)
            in_lumps += [len(pieces) - 1, token]
            lump = b""
        else:
            in_bytes += [2 + byte for byte in vocabulary[token]]
            lump += vocabulary[token]
    pieces.append(lump)
    in_lumps.append(len(pieces) - 1)
    assert outcome(setting.chain(pieces), in_bytes) == expected
    assert outcome(setting.chain(pieces), in_lumps) == expected


@pytest.mark.parametrize("start", range(0, 3_000, 1_000))
def test_random_outputs(start: int) -> None:
    for seed in range(start, start + 1_000):
        check_one(seed)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_a_hundred_thousand_random_outputs() -> None:
    for seed in range(10_000, 110_000):
        check_one(seed)
