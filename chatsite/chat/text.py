"""The one place where text is made fit for Postgres and UTF-8, on its way in from people and from models alike."""

from __future__ import annotations

import hashlib
import re

_LONE_SURROGATES = re.compile("[\ud800-\udfff]")
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
ELLIPSIS = "…"

QUOTE_COMMAND = "/quote"  # as a message: no question, and no title comes of it


def clean(text: str) -> str:
    """`text` without NUL, which Postgres cannot hold, and with U+FFFD for every lone surrogate, which UTF-8 cannot.

    Works piece by piece: the cleaned pieces of a text join to the cleaned text.
    """
    if "\x00" in text:
        text = text.replace("\x00", "")
    return _LONE_SURROGATES.sub(REPLACEMENT, text)


def clean_typed(text: str) -> str:
    """As `clean`, and with the line ends that browsers send (CR LF) as LF."""
    return clean(text).replace("\r\n", "\n").replace("\r", "\n")


def title_of(text: str, max_chars: int = 60) -> str:
    """The first words of `text` on one line, cut between words where there is a gap to cut at."""
    line = " ".join(text[: 20 * max_chars].split())
    if len(line) <= max_chars:
        return line
    head = line[: max_chars - 1]
    at_gap = head.rsplit(" ", 1)[0]
    return (at_gap if len(at_gap) > max_chars // 2 else head).rstrip() + ELLIPSIS


def sha256_of(content: str) -> str:
    """What stands on a generation's row, to compare what was shown with what is stored."""
    return hashlib.sha256(content.encode()).hexdigest()
