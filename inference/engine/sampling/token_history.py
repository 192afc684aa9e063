"""The token ids of one sequence, prompt and generated, how often each generated id came, and what repeats in them.

Owned by the sequence; the sampler reads it for penalties and for the number of the next draw. The engine's thread
writes it; while the sampler works on a row, the thread that has the row reads it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from inference.engine.logits import TokenIds
from inference.engine.sampling.dry import Repeats


class TokenHistory:
    """`prompt` followed by what was generated so far; room for `capacity` ids in all, fixed at the start."""

    def __init__(self, prompt: TokenIds, generated: TokenIds, *, capacity: int, counts_generated: bool) -> None:
        self.num_prompt = len(prompt)
        self.num_tokens = len(prompt) + len(generated)
        assert self.num_tokens <= capacity, (self.num_tokens, capacity)
        self._ids = np.zeros(capacity, np.int32)
        self._ids[: self.num_prompt] = prompt
        self._ids[self.num_prompt : self.num_tokens] = generated
        # Counted one by one as tokens come: counting afresh each step would cost a sort of the whole answer.
        self._repeats = Repeats()
        self._counts_generated = counts_generated
        self._place_of: dict[int, int] = {}
        self._counted_ids = np.zeros(16, np.int64)
        self._counts = np.zeros(16, np.float32)
        if counts_generated:
            for token in generated.tolist():
                self._count(token)

    @property
    def num_generated(self) -> int:
        return self.num_tokens - self.num_prompt

    @property
    def ids(self) -> TokenIds:
        """All token ids; a view."""
        return self._ids[: self.num_tokens]

    def part(self, start: int, end: int) -> TokenIds:
        """Ids of positions start..end (end excluded); a view."""
        assert 0 <= start <= end <= self.num_tokens, (start, end, self.num_tokens)
        return self._ids[start:end]

    def last(self, count: int) -> TokenIds:
        """The newest `count` ids, or all when there are fewer; a view."""
        return self._ids[max(0, self.num_tokens - count) : self.num_tokens]

    @property
    def newest(self) -> int:
        return int(self._ids[self.num_tokens - 1])

    def append(self, token: int) -> None:
        assert self.num_tokens < len(self._ids), self.num_tokens
        self._ids[self.num_tokens] = token
        self.num_tokens += 1
        if self._counts_generated:
            self._count(token)

    def generated_counts(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Distinct generated ids and how often each came; views, in order of first appearance."""
        assert self._counts_generated
        num_distinct = len(self._place_of)
        return self._counted_ids[:num_distinct], self._counts[:num_distinct]

    def repeats(self) -> Repeats:
        """What repeats at the end; brought up to date here, so that only those who ask pay for it."""
        self._repeats.follow(self.ids)
        return self._repeats

    def _count(self, token: int) -> None:
        place = self._place_of.get(token)
        if place is None:
            place = self._place_of[token] = len(self._place_of)
            if place == len(self._counts):
                self._counted_ids = np.concatenate([self._counted_ids, np.zeros_like(self._counted_ids)])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            self._counted_ids[place] = token
        self._counts[place] += 1
