"""Stop strings: found across cuts, and nothing that may begin one is shown too early."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.output.stop_strings import StopStrings

CASES = [
    (["the quick br", "own f", "ox jumps"], ["own fox"], "the quick br", True),
    (["The capital is Pa", "ris."], ["Pari"], "The capital is ", True),
    (["1 2 3 4 5 6", " ", "7", " 8"], ["7"], "1 2 3 4 5 6 ", True),
    (["abc", "ab", "d"], ["abd"], "abc", True),
    (["aaab"], ["aab"], "a", True),
    (["ends with <|im", "_end"], ["<|im_end|>"], "ends with <|im_end", False),
    (["first\n", "\nsecond"], ["\n\n"], "first", True),
    (["naïve ca", "fé!"], ["é!"], "naïve caf", True),
    (["no stop ", "strings"], [], "no stop strings", False),
]


def run(pieces: Sequence[str], stop: Sequence[str]) -> tuple[str, bool]:
    parser = StopStrings(stop)
    shown = ""
    for piece in pieces:
        shown += parser.feed(piece)
    return shown + parser.flush(), parser.stopped


@pytest.mark.parametrize(("pieces", "stop", "shown", "stopped"), CASES)
def test_text_ends_before_the_stop_string(pieces: list[str], stop: list[str], shown: str, stopped: bool) -> None:
    assert run(pieces, stop) == (shown, stopped)


@pytest.mark.parametrize(("pieces", "stop", "shown", "stopped"), CASES)
def test_every_split_gives_the_same(pieces: list[str], stop: list[str], shown: str, stopped: bool) -> None:
    text = "".join(pieces)
    for first in range(len(text) + 1):
        for second in range(first, len(text) + 1):
            assert run([text[:first], text[first:second], text[second:]], stop) == (shown, stopped)


@pytest.mark.parametrize(("pieces", "stop", "shown", "stopped"), CASES)
def test_nothing_shown_is_ever_taken_back(pieces: list[str], stop: list[str], shown: str, stopped: bool) -> None:
    parser = StopStrings(stop)
    so_far = ""
    for char in "".join(pieces):
        so_far += parser.feed(char)
        assert shown.startswith(so_far)


def test_the_stop_string_completed_first_wins() -> None:
    assert run(["abcde"], ["abcde", "c"]) == ("ab", True)
    assert run(list("abcde"), ["abcde", "c"]) == ("ab", True)


def test_of_two_completed_together_the_longer_wins() -> None:
    assert run(["xabc"], ["c", "abc"]) == ("x", True)
    assert run(list("xabc"), ["c", "abc"]) == ("x", True)


def test_what_begins_no_stop_string_is_shown_at_once() -> None:
    parser = StopStrings(["own fox"])
    assert parser.feed("quick brown ") == "quick br"
    assert parser.feed("x") == "own x"


def test_nothing_comes_after_the_stop() -> None:
    parser = StopStrings(["7"])
    assert parser.feed("6 7 8") == "6 "
    assert parser.feed("9") == ""
    assert parser.flush() == ""


def reference(text: str, stop: Sequence[str]) -> tuple[str, bool]:
    for end in range(1, len(text) + 1):
        ending = [s for s in stop if text[:end].endswith(s)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


@given(
    st.lists(st.text("abc", max_size=5), max_size=12),
    st.lists(st.text("abc", min_size=1, max_size=5), max_size=4),
)
def test_streamed_equals_whole(pieces: list[str], stop: list[str]) -> None:
    assert run(pieces, stop) == run(["".join(pieces)], stop) == reference("".join(pieces), stop)
