"""What a worker makes known of itself, in two kinds: what merely is so, and where it gives less than it should.

Owns the distinction: a degradation is counted, logged as a warning and makes the site say that it is degraded; other
notes only inform. The loader gathers them, the worker's card carries them.
"""

from __future__ import annotations

from collections.abc import Iterable

NO_GPU = "No GPU can be used here, so answers are computed on the CPU."


class Notes:
    """One sentence each, in the order they were said."""

    def __init__(self, informing: Iterable[str] = ()) -> None:
        self.informing = list(informing)
        self.degradations: list[str] = []

    def inform(self, sentence: str) -> None:
        """It is as it was asked for, and worth knowing."""
        self.informing.append(sentence)

    def degrade(self, sentence: str) -> None:
        """It is less than was asked for, or than it could be."""
        self.degradations.append(sentence)
