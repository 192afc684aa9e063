"""One forward call: which tokens, at which positions, of which slots, and which rows want logits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


class Batch:
    """Arrays of fixed capacity, filled anew each step without allocation.

    `tokens`, `positions`, `slots` (int32) and `wants_logits` (int8) are views of length `num_tokens`. The first
    `num_rows` are single tokens of different slots, by rising slot, each with logits.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.num_tokens = 0
        self.num_rows = 0
        self.num_logit_rows = 0
        self._tokens = np.zeros(capacity, np.int32)
        self._positions = np.zeros(capacity, np.int32)
        self._slots = np.zeros(capacity, np.int32)
        self._wants_logits = np.zeros(capacity, np.int8)

    def clear(self) -> None:
        self.num_tokens = 0
        self.num_rows = 0
        self.num_logit_rows = 0

    @property
    def room(self) -> int:
        return self.capacity - self.num_tokens

    def add(self, slot: int, tokens: npt.NDArray[np.int32], first_position: int, *, wants_logits: bool) -> None:
        """Append `tokens` of one slot at `first_position` and on; logits, if wanted, for the last of them only."""
        start, end = self.num_tokens, self.num_tokens + len(tokens)
        assert len(tokens) > 0
        assert end <= self.capacity, (end, self.capacity)
        self._tokens[start:end] = tokens
        self._positions[start:end] = np.arange(first_position, first_position + len(tokens), dtype=np.int32)
        self._slots[start:end] = slot
        self._wants_logits[start:end] = 0
        if wants_logits:
            self._wants_logits[end - 1] = 1
            self.num_logit_rows += 1
        self.num_tokens = end

    def add_rows(self, slots: Sequence[int], tokens: Sequence[int], positions: Sequence[int]) -> None:
        """Begin with one token each of several slots, which rise, all with logits: the decode rows, in one go."""
        assert self.num_tokens == 0, "rows come before chunks"
        start, end = 0, len(slots)
        assert end <= self.capacity, (end, self.capacity)
        self._tokens[start:end] = tokens
        self._positions[start:end] = positions
        self._slots[start:end] = slots
        self._wants_logits[start:end] = 1
        self.num_rows = self.num_logit_rows = self.num_tokens = end

    @property
    def tokens(self) -> npt.NDArray[np.int32]:
        return self._tokens[: self.num_tokens]

    @property
    def positions(self) -> npt.NDArray[np.int32]:
        return self._positions[: self.num_tokens]

    @property
    def slots(self) -> npt.NDArray[np.int32]:
        return self._slots[: self.num_tokens]

    @property
    def wants_logits(self) -> npt.NDArray[np.int8]:
        return self._wants_logits[: self.num_tokens]
