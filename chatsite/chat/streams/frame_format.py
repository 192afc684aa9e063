"""How a growing answer is told to a viewer, frame by frame: in words for any client, in HTML for our own page.

    Plain   `content` in every frame; `blocks` when some were finished, with `tail`, the text after them
    ForPage what changes on the page, and nothing twice: `grow` is plain text to add where the answer grows; otherwise
            `html`, behind the first `keep` UTF-16 units of the HTML told before, is the unfinished tail as it looks,
            and its first `cut` units, when there are some, are finished blocks that leave the tail for good

Pure; knows no frames' cursors and no text's origin. Used by `follow`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from chatsite.chat.rendering.stream import Update, View


class Telling(Protocol):
    def forget(self) -> None:
        """The page has what was taken so far from elsewhere."""

    def take(self, content: str, update: Update, look: Callable[[], View]) -> dict[str, Any]:
        """What a frame says after `content` was added; empty when nothing new is seen. `look` costs a rendering."""


class Plain:
    def forget(self) -> None:
        return

    def take(self, content: str, update: Update, look: Callable[[], View]) -> dict[str, Any]:
        said: dict[str, Any] = {"content": content}
        return said | {"blocks": update.blocks, "tail": update.tail} if update.blocks else said


class ForPage:
    def __init__(self) -> None:
        self._view = View("", "")
        self._told = ""  # the HTML of the tail in the last frame that told it

    def forget(self) -> None:
        """The page knows the look of this tail, but not the words in which it was told."""
        self._told = ""

    def take(self, content: str, update: Update, look: Callable[[], View]) -> dict[str, Any]:
        before, self._view = self._view, look()
        view = self._view
        blocks = "".join(update.blocks)
        if not blocks and view.html == before.html and view.text.startswith(before.text):
            added = view.text[len(before.text) :]
            return {"grow": added} if added else {}
        tail = view.whole
        whole = blocks + tail
        keep = _num_common(self._told, whole)
        self._told = tail
        said: dict[str, Any] = {"html": whole[keep:]}
        if keep:
            said["keep"] = _num_units(whole[:keep])
        if blocks:
            said["cut"] = _num_units(blocks)
        return said


def _num_units(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


def _num_common(one: str, other: str) -> int:
    """The length of the longest beginning of both."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
