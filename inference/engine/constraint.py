"""What a submission may bring along to restrict its tokens: a grammar, seen as masks over the vocabulary.

`inference.grammar` implements it for JSON schemas. All methods are called from the engine's thread alone.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

TokenMask = npt.NDArray[np.uint32]  # bit i % 32 of word i // 32 is set when token i may come next


class Constraint(Protocol):
    """State of one answer."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing more may follow; the answer ends then."""

    @property
    def is_open(self) -> bool:
        """Whether everything may come next, so that nobody need look at the mask."""

    def mask(self) -> TokenMask:
        """What may come next; shape (ceil(vocab_size / 32),). Valid until the next call.

        Tokens that end an answer are set where it may end here.
        """

    def accept(self, token: int) -> None:
        """Go on past a token that the mask allowed."""
