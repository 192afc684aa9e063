"""Ends a text before a stop string, and shows nothing that may begin one.

Owns the text held back. Works on text, so a stop string may begin and end inside tokens. Knows nothing of tokens or
reasoning: `output.deltas` gives it content alone, in the thread of one generation.
"""

from __future__ import annotations

from collections.abc import Sequence

from inference.output.hold_back import HoldBack


class StopStrings:
    """Looks for the stop string that is completed first.

    Of several completed by the same character the longest counts. Deciding by completion, not by where a match
    begins, is what makes a streamed text equal to the same text seen whole.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(stop)
        self._hold_back = HoldBack(self._stop)
        self._held = ""
        self.stopped = False

    def feed(self, text: str) -> str:
        """The text that is safe to show now. Once `stopped`, nothing more comes."""
        if self.stopped:
            return ""
        if not self._stop:
            return text
        text = self._held + text
        start = self._first_completed(text)
        if start is not None:
            self.stopped = True
            self._held = ""
            return text[:start]
        num_shown = len(text) - self._hold_back.length(text)
        self._held = text[num_shown:]
        return text[:num_shown]

    def flush(self) -> str:
        """No more text follows: what was held back began no stop string after all."""
        rest, self._held = self._held, ""
        return rest

    def _first_completed(self, text: str) -> int | None:
        """Where the stop string that ends first begins."""
        matches = [(at + len(stop), at) for stop in self._stop if (at := text.find(stop)) >= 0]
        return min(matches)[1] if matches else None
