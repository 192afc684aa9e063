"""Splits reasoning from the answer.

Owns whether the text is inside a thinking block, and what is held back until that is known. The tags are special
tokens where the model has them as such (then the same characters typed out are plain text), else literal text.
`output.deltas` calls it, in the thread of one generation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from inference.messages.generation import Delta
from inference.output.code_fence import CodeFence
from inference.output.hold_back import HoldBack

Kind = Literal["content", "reasoning"]


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
    text. So is a start tag inside a fenced code block or right after a backtick, and as literal text right after any
    quote character: an answer that explains the tag.

    Trimmed: white space around all reasoning taken together (so an empty block leaves nothing), and line ends before
    the first character of the answer. White space between two blocks stays, since it parts two thoughts.

    `fence` is for a content that somebody else knows better: it is fed by them, and only asked here. `given` is content
    that stands before the text.
    """

    def __init__(
        self, tags: ThinkTags, *, starts_inside: bool = False, fence: CodeFence | None = None, given: str = ""
    ) -> None:
        self._tags = tags
        self._inside = starts_inside
        self._reads_text = not tags.are_tokens
        self._hold_back = {True: HoldBack([tags.close]), False: HoldBack([tags.open])}
        self._held = ""  # may begin a literal tag
        self._feeds_fence = fence is None
        self._fence = fence or CodeFence()  # of the content before `_held`
        self._blank: list[str] = []  # white space of reasoning, shown only when more reasoning follows
        self._has_reasoning = False
        self._has_content = bool(given)
        if fence is None:
            self._fence.feed(given)

    @property
    def is_thinking(self) -> bool:
        return self._inside

    def open(self) -> list[Delta]:
        """A start tag token came."""
        if self._inside or self._fence.is_code:
            return self._show(self._tags.open)
        self._turn()
        return []

    def close(self) -> list[Delta]:
        """An end tag token came."""
        if not self._inside:
            return self._show(self._tags.close)
        self._turn()
        return []

    def feed(self, text: str) -> list[Delta]:
        if not self._reads_text:
            return self._show(text)
        deltas: list[Delta] = []
        text = self._held + text
        while (at := text.find(tag := self._tags.close if self._inside else self._tags.open)) >= 0:
            deltas += self._show(text[:at])
            text = text[at + len(tag) :]
            if self._inside or not self._fence.is_quoting:
                self._turn()
            else:
                deltas += self._show(tag)
        num_shown = len(text) - self._hold_back[self._inside].length(text)
        self._held = text[num_shown:]
        return deltas + self._show(text[:num_shown])

    def flush(self) -> list[Delta]:
        """No more text follows: what was held back was no tag. White space after the last thought is dropped."""
        rest, self._held = self._held, ""
        return self._show(rest)

    def _turn(self) -> None:
        """A tag changed sides."""
        self._inside = not self._inside
        self._fence.forget_quote()

    def _show(self, text: str) -> list[Delta]:
        return self._show_reasoning(text) if self._inside else self._show_content(text)

    def _show_reasoning(self, text: str) -> list[Delta]:
        shown = text.rstrip()
        blank = text[len(shown) :]
        if not shown:
            self._blank.append(blank)
            return []
        shown = "".join([*self._blank, shown]) if self._has_reasoning else shown.lstrip()
        self._blank = [blank]
        self._has_reasoning = True
        return [Delta("reasoning", shown)]

    def _show_content(self, text: str) -> list[Delta]:
        if self._feeds_fence:
            self._fence.feed(text)
        if not self._has_content:
            text = text.lstrip("\r\n")
        if not text:
            return []
        self._has_content = True
        return [Delta("content", text)]
