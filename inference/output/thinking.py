"""Splits reasoning from the answer.

Owns whether the text is inside a thinking block, and what is held back until that is known. The tags are special
tokens where the model has them as such (then the same characters typed out are plain text), else literal text.
`output.deltas` calls it, in the thread of one generation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from inference.output.hold_back import HoldBack
from inference.protocol import Delta

Kind = Literal["content", "reasoning"]

QUOTES = frozenset("`'\"")


@dataclass(frozen=True)
class ThinkTags:
    """The texts that open and close a thinking block, and their token ids where each is one special token."""

    open: str
    close: str
    open_id: int | None = None
    close_id: int | None = None

    @property
    def are_tokens(self) -> bool:
        return self.open_id is not None and self.close_id is not None


class ThinkingSplitter:
    """Feed it text, and tell it of tag tokens by `open` and `close`; it answers with deltas of either kind.

    A block may come again later and may stay unclosed. An end tag outside a block, or a start tag inside one, is
    text. As literal text, a start tag right after a quote character is text too: an answer that explains the tag.

    Trimmed: white space around all reasoning taken together (so an empty block leaves nothing), and line ends before
    the first character of the answer. White space between two blocks stays, since it parts two thoughts.
    """

    def __init__(self, tags: ThinkTags, *, starts_inside: bool = False) -> None:
        self._tags = tags
        self._inside = starts_inside
        self._reads_text = not tags.are_tokens
        self._hold_back = {True: HoldBack([tags.close]), False: HoldBack([tags.open])}
        self._held = ""  # may begin a literal tag
        self._before = ""  # the character before `_held`
        self._blank = ""  # white space of reasoning, shown only when more reasoning follows
        self._has_reasoning = False
        self._has_content = False

    @property
    def is_thinking(self) -> bool:
        return self._inside

    def open(self) -> list[Delta]:
        """A start tag token came."""
        if self._inside:
            return self._show(self._tags.open)
        self._inside = True
        return []

    def close(self) -> list[Delta]:
        """An end tag token came."""
        if not self._inside:
            return self._show(self._tags.close)
        self._inside = False
        return []

    def feed(self, text: str) -> list[Delta]:
        if not self._reads_text:
            return self._show(text)
        deltas: list[Delta] = []
        text = self._held + text
        while (at := self._find_tag(text)) >= 0:
            deltas += self._show(text[:at])
            text = text[at + len(self._tags.close if self._inside else self._tags.open) :]
            self._before = ""
            self._inside = not self._inside
        num_shown = len(text) - self._hold_back[self._inside].length(text)
        if num_shown:
            self._before = text[num_shown - 1]
        self._held = text[num_shown:]
        return deltas + self._show(text[:num_shown])

    def flush(self) -> list[Delta]:
        """No more text follows: what was held back was no tag. White space after the last thought is dropped."""
        rest, self._held = self._held, ""
        return self._show(rest)

    def _find_tag(self, text: str) -> int:
        """Where the tag that would change sides begins; -1 when there is none."""
        if self._inside:
            return text.find(self._tags.close)
        at = text.find(self._tags.open)
        while at >= 0 and (text[at - 1] if at else self._before) in QUOTES:
            at = text.find(self._tags.open, at + 1)
        return at

    def _show(self, text: str) -> list[Delta]:
        return self._show_reasoning(text) if self._inside else self._show_content(text)

    def _show_reasoning(self, text: str) -> list[Delta]:
        text = self._blank + text
        if not self._has_reasoning:
            text = text.lstrip()
        shown = text.rstrip()
        self._blank = text[len(shown) :]
        if not shown:
            return []
        self._has_reasoning = True
        return [Delta("reasoning", shown)]

    def _show_content(self, text: str) -> list[Delta]:
        if not self._has_content:
            text = text.lstrip("\r\n")
        if not text:
            return []
        self._has_content = True
        return [Delta("content", text)]
