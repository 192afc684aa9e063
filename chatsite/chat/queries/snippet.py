"""A few words of a text around what was searched for, with <mark>: escaped here, since nothing after this does it.

Compares as the search does (accents, case and signs do not count), yet shows the text as it was written. Only the
places of one page of results come here, and of a long text only the stretch around the first.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe

SNIPPET_CHARS = 160
BEFORE_CHARS = 50
STRETCH_CHARS = 2_000  # of a text, looked through at a time
_LETTER = r"[^\W_]"
_UNSPACED = re.compile("[\u0e00-\u0eff\u2e80-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
_CHANCE = "\"'“”‘’«»()[]{}<>*`,;:!?"
_GAP = re.compile(r"\s+")
_JOINED = re.compile("[\u0300-\u036f\u200d\u3099\u309a\ufe00-\ufe0f]")


class Marker:
    """`terms` are words that follow one another, as they are compared, whether the last may go on, and how they were
    typed where their signs count."""

    def __init__(self, terms: Iterable[tuple[tuple[str, ...], bool, str]]) -> None:
        patterns = [
            _written(typed, is_beginning) or _pattern(words, is_beginning) for words, is_beginning, typed in terms
        ]
        self._sought = re.compile("|".join(patterns) or r"\Z.")

    def whole(self, text: str) -> SafeString:
        """All of `text`."""
        folded, places = _fold(text)
        return self._marked(text, folded, places, 0, len(text))

    def around(self, text: str) -> SafeString:
        """The stretch of `text` around the first place; its beginning when there is none."""
        for begin in range(0, len(text), STRETCH_CHARS - SNIPPET_CHARS):
            stretch = text[begin : begin + STRETCH_CHARS]
            folded, places = _fold(stretch)
            if match := self._sought.search(folded):
                low = _gap(stretch, max(0, places[match.start()] - BEFORE_CHARS))
                high = min(len(stretch), low + SNIPPET_CHARS)
                return mark_safe(
                    ("…" if begin + low else "")
                    + self._marked(stretch, folded, places, low, high)
                    + ("…" if begin + high < len(text) else "")
                )
        return escape(text[:SNIPPET_CHARS] + ("…" if len(text) > SNIPPET_CHARS else ""))

    def _marked(self, text: str, folded: str, places: list[int], low: int, high: int) -> SafeString:
        parts: list[str] = []
        at = low
        for match in self._sought.finditer(folded):
            begin, end = places[match.start()], places[match.end()]
            if begin < at or end > high or begin == end:
                continue
            parts += [escape(text[at:begin]), "<mark>", escape(text[begin:end]), "</mark>"]
            at = end
        return mark_safe("".join([*parts, escape(text[at:high])]))


def _fold(text: str) -> tuple[str, list[int]]:
    """`text` as it is compared, and for each of its characters (and its end) the place in `text` that it came from."""
    folded: list[str] = []
    places: list[int] = []
    for index, char in enumerate(text):
        plain = char.lower() if char.isascii() else _JOINED.sub("", unicodedata.normalize("NFKD", char)).lower()
        folded.append(plain)
        places += [index] * len(plain)
    return "".join(folded), [*places, len(text)]


def _pattern(words: tuple[str, ...], is_beginning: bool) -> str:
    body = r"[\W_]*".join(re.escape(word) for word in words)
    head = "" if _UNSPACED.match(words[0]) else f"(?<!{_LETTER})"
    tail = "" if is_beginning or _UNSPACED.match(words[-1]) else f"(?!{_LETTER})"
    return f"{head}{body}{tail}"


def _written(typed: str, is_beginning: bool) -> str:
    """What was typed with its signs; those that make no form stand around it by chance."""
    folded = _fold(typed)[0]
    folded = folded.strip(_CHANCE) or folded
    if not folded:
        return ""
    head = f"(?<!{_LETTER})" if re.match(_LETTER, folded) and not _UNSPACED.match(folded) else ""
    tail = f"(?!{_LETTER})" if re.search(f"{_LETTER}$", folded) and not _UNSPACED.match(folded[-1]) else ""
    return head + re.escape(folded) + ("" if is_beginning else tail)


def _gap(text: str, place: int) -> int:
    """The beginning of a word at or soon after `place`."""
    if place == 0 or text[place - 1].isspace():
        return place
    gap = _GAP.search(text, place, place + BEFORE_CHARS // 2)
    return gap.end() if gap else place
