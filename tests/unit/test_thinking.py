"""Reasoning and answer are parted alike for every cut of the text, tags as tokens or as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.messages.generation import Delta
from inference.output.thinking import ThinkingSplitter, ThinkTags

OPEN, CLOSE = "<think>", "</think>"
AS_TOKENS = ThinkTags(OPEN, CLOSE, open_id=1, close_id=2)
AS_TEXT = ThinkTags(OPEN, CLOSE)

# text, starts_inside, typed (the characters are typed out, not tags), reasoning, content
CASES = [
    ("<think>plan</think>answer", False, False, ["plan"], "answer"),
    ("plan</think>answer", True, False, ["plan"], "answer"),
    ("<think>never closed", False, False, ["never closed"], ""),
    ("<think>a</think>b<think>c</think>d", False, False, ["a", "c"], "bd"),
    ("Use the `<think>` tag in prompts.", False, True, [], "Use the `<think>` tag in prompts."),
    ("<think>\n\n</think>\nHi", False, False, [], "Hi"),
    ("x < think > y", False, False, [], "x < think > y"),
    ("a </think> b", False, True, [], "a </think> b"),
    ("<think>one two</think>three", False, False, ["one two"], "three"),
    ("<think>\nfirst\n</think>\n\nHi\n\nthere\n", False, False, ["first"], "Hi\n\nthere\n"),
    ("<think>a\n\nb</think>\n    code", False, False, ["a\n\nb"], "    code"),
    ("\n\nno block at all", False, False, [], "no block at all"),
    ("So:\n```xml\n<think>x</think>\n```\n", False, False, [], "So:\n```xml\n<think>x</think>\n```\n"),
    ("~~~\n<think>", False, True, [], "~~~\n<think>"),
    ("```\nx\n```\n<think>y</think>z", False, False, ["y"], "```\nx\n```\nz"),
    ("a `<think>` b <think>c</think>d", False, False, ["c"], "a `<think>` b d"),
    ("<think>```\n</think>a", False, False, ["```"], "a"),
]


def tokens(text: str) -> Iterator[str]:
    """Tags whole, everything else by single characters."""
    while text:
        size = next((len(tag) for tag in (OPEN, CLOSE) if text.startswith(tag)), 1)
        yield text[:size]
        text = text[size:]


def joined(deltas: Iterable[Delta]) -> tuple[str, str]:
    shown = list(deltas)
    assert all(delta.text for delta in shown)
    return (
        "".join(delta.text for delta in shown if delta.kind == "reasoning"),
        "".join(delta.text for delta in shown if delta.kind == "content"),
    )


def run_text(pieces: Iterable[str], *, starts_inside: bool = False) -> tuple[str, str]:
    splitter = ThinkingSplitter(AS_TEXT, starts_inside=starts_inside)
    deltas = [delta for piece in pieces for delta in splitter.feed(piece)]
    return joined(deltas + splitter.flush())


def run_tokens(pieces: Iterable[str], *, starts_inside: bool = False) -> tuple[str, str]:
    splitter = ThinkingSplitter(AS_TOKENS, starts_inside=starts_inside)
    deltas: list[Delta] = []
    for piece in pieces:
        deltas += splitter.open() if piece == OPEN else splitter.close() if piece == CLOSE else splitter.feed(piece)
    return joined(deltas + splitter.flush())


@pytest.mark.parametrize(("text", "inside", "typed", "reasoning", "content"), CASES)
def test_tag_tokens(text: str, inside: bool, typed: bool, reasoning: list[str], content: str) -> None:
    pieces = list(text) if typed else list(tokens(text))
    assert run_tokens(pieces, starts_inside=inside) == ("".join(reasoning), content)


@pytest.mark.parametrize(("text", "inside", "typed", "reasoning", "content"), CASES)
def test_tags_as_text_for_every_split(text: str, inside: bool, typed: bool, reasoning: list[str], content: str) -> None:
    for first in range(len(text) + 1):
        for second in range(first, len(text) + 1):
            pieces = [text[:first], text[first:second], text[second:]]
            assert run_text(pieces, starts_inside=inside) == ("".join(reasoning), content), pieces
    assert run_text(text, starts_inside=inside) == ("".join(reasoning), content)


def test_typed_tags_are_text_where_tags_are_tokens() -> None:
    assert run_tokens("say <think>x</think>".split(" ")) == ("", "say<think>x</think>")


def test_stray_tag_tokens_are_text() -> None:
    assert run_tokens(["a ", CLOSE, " b"]) == ("", "a </think> b")
    assert run_tokens([OPEN, "a ", OPEN, " b", CLOSE, "c"]) == ("a <think> b", "c")


def test_a_thought_may_follow_a_quotation() -> None:
    assert run_tokens(["he said 'so'", OPEN, "why", CLOSE, "."]) == ("why", "he said 'so'.")


def test_white_space_between_two_blocks_parts_the_thoughts() -> None:
    assert run_tokens([OPEN, "\none\n", CLOSE, "\nA", OPEN, "\ntwo\n", CLOSE, "B"]) == ("one\n\ntwo", "AB")


def test_a_possible_tag_is_held_back_until_it_is_none() -> None:
    splitter = ThinkingSplitter(AS_TEXT)
    assert joined(splitter.feed("a <thi")) == ("", "a ")
    assert joined(splitter.feed("ng>")) == ("", "<thing>")
    assert not splitter.is_thinking


def test_a_cut_tag_at_the_end_is_shown() -> None:
    assert run_text(["<think>a</thi"]) == ("a</thi", "")


@given(st.lists(st.sampled_from(["<think>", "</think>", "<", "th", "ink>", "</", "a", "\n", " ", "`"]), max_size=20))
def test_streamed_equals_whole(pieces: list[str]) -> None:
    text = "".join(pieces)
    assert run_text(pieces) == run_text([text]) == run_text(text)


@given(st.lists(st.sampled_from([OPEN, CLOSE, "a", "b c", "\n", " ", "`"]), max_size=20), st.booleans())
def test_grouping_does_not_matter_with_tag_tokens(pieces: list[str], inside: bool) -> None:
    grouped: list[str] = []
    for piece in pieces:
        if grouped and piece not in (OPEN, CLOSE) and grouped[-1] not in (OPEN, CLOSE):
            grouped[-1] += piece
        else:
            grouped.append(piece)
    assert run_tokens(pieces, starts_inside=inside) == run_tokens(grouped, starts_inside=inside)
