"""Bytes to text: whole characters only, whatever the cuts."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.output.detokenizer import Detokenizer

CASES = [
    (["f09f91a9e2", "808df09f", "92bb", "e6ad", "aa"], "👩‍💻歪"),
    (["e2", "82", "ac35"], "€5"),
    (["68c3", "a9", "6c6c6f"], "héllo"),
    (["f09f8fb3", "efb88fe2", "808df0", "9f8c88"], "🏳️‍🌈"),
    (["6f6b", "e282"], "ok\ufffd"),
    (["ff", "41"], "\ufffdA"),
    (["e0a4a8e0", "a4aee0a4", "b8e0a58d", "e0a4a4e0", "a587"], "नमस्ते"),
    (["61", "00", "62"], "ab"),
]


def decoded(pieces: list[bytes]) -> str:
    detokenizer = Detokenizer()
    return "".join(detokenizer.feed(piece) for piece in pieces) + detokenizer.flush()


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(at % (len(data) + 1) for at in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


@pytest.mark.parametrize(("pieces", "text"), CASES)
def test_pieces_give_the_whole_text(pieces: list[str], text: str) -> None:
    assert decoded([bytes.fromhex(piece) for piece in pieces]) == text


@pytest.mark.parametrize(("pieces", "text"), CASES)
def test_every_split_gives_the_same_text(pieces: list[str], text: str) -> None:
    data = bytes.fromhex("".join(pieces))
    for first in range(len(data) + 1):
        for second in range(first, len(data) + 1):
            assert decoded([data[:first], data[first:second], data[second:]]) == text


@pytest.mark.parametrize("text", ["👩‍💻歪", "🏳️‍🌈", "नमस्ते", "héllo €5"])
def test_no_prefix_of_good_bytes_shows_a_replacement_character(text: str) -> None:
    detokenizer = Detokenizer()
    shown = ""
    for byte in text.encode():
        shown += detokenizer.feed(bytes([byte]))
        assert text.startswith(shown)
    assert shown == text


def test_an_invalid_byte_is_replaced_as_soon_as_it_is_certain() -> None:
    detokenizer = Detokenizer()
    assert detokenizer.feed(b"\xff") == "\ufffd"
    assert detokenizer.feed(b"\xe2\x82") == ""
    assert detokenizer.feed(b"A") == "\ufffdA"


def test_flush_leaves_nothing_behind() -> None:
    detokenizer = Detokenizer()
    assert detokenizer.feed(b"\xf0\x9f") == ""
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""
    assert detokenizer.feed(b"\x91 ok") == "\ufffd ok"


@given(st.binary(max_size=60), st.lists(st.integers(min_value=0), max_size=8))
def test_streamed_equals_whole(data: bytes, cuts: list[int]) -> None:
    assert decoded(cut(data, cuts)) == data.decode(errors="replace").replace("\0", "")
