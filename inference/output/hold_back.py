"""How much of a text's end may be the beginning of something that must not be shown yet.

Shared by the parsers that look for literal text across token borders (`stop_strings`, `thinking`).
"""

from __future__ import annotations

from collections.abc import Sequence


class HoldBack:
    """The patterns one parser waits for; `length` says how many characters it has to keep back."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = tuple(patterns)
        self._first_chars = frozenset(pattern[0] for pattern in self._patterns)
        self._max_held = max((len(pattern) for pattern in self._patterns), default=1) - 1

    def length(self, text: str) -> int:
        """Characters of the longest suffix of `text` that is a proper prefix of any pattern; 0 when there is none."""
        for start in range(max(0, len(text) - self._max_held), len(text)):
            if text[start] in self._first_chars:
                suffix = text[start:]
                if any(len(suffix) < len(pattern) and pattern.startswith(suffix) for pattern in self._patterns):
                    return len(suffix)
        return 0
