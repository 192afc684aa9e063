"""DRY ("don't repeat yourself"): which tokens would lengthen a repetition, and what each of them loses.

As in llama.cpp: a token that followed an earlier copy of the newest n tokens would make that repetition n + 1 long; it
loses multiplier * base ** (n - allowed_length) once n reaches `allowed_length`. A copy never reaches back past the
newest breaker (a newline, a colon, …), and a breaker itself loses nothing. Only the last 1,024 tokens count.

Knows token ids alone. `TokenHistory` owns a `Repeats`; `logits_processors.py` applies what comes out.
"""

from __future__ import annotations

import math
from collections.abc import Set

import numpy as np
import numpy.typing as npt

from inference.engine.logits import TokenIds
from inference.engine.sampling.plan import SamplerPlan

WINDOW_TOKENS = 1024

_MAX_CATCH_UP = 16  # tokens followed one by one; a history further ahead is read afresh
_MAX_EXPONENT_LOG = 88.7228391  # of float32; llama.cpp stops the power there
_MAX_PENALTY = float(np.finfo(np.float32).max)


class Repeats:
    """For every place of the window but the last: how many tokens up to there equal the newest ones of the sequence.

    Followed token by token, each step costs one comparison with the window: the copies that go on grow by one, the
    others fall to 0.
    """

    def __init__(self) -> None:
        self._num_seen = 0
        self._window: TokenIds = np.zeros(0, np.int32)
        self._lengths: npt.NDArray[np.int32] = np.zeros(0, np.int32)  # one for each place of the window but the last

    def follow(self, ids: TokenIds) -> None:
        """Take in the sequence as it stands now; it only ever grows."""
        num_new = len(ids) - self._num_seen
        assert num_new >= 0, (len(ids), self._num_seen)
        if self._num_seen > 0 and num_new <= _MAX_CATCH_UP:
            for end in range(self._num_seen + 1, len(ids) + 1):
                window = ids[max(0, end - WINDOW_TOKENS) : end]
                # While the window still grows, its places stand one further right than their predecessors'.
                before = self._lengths if end > WINDOW_TOKENS else np.concatenate([[0], self._lengths])
                self._lengths = np.where(window[:-1] == window[-1], before + 1, 0).astype(np.int32)
        else:
            self._lengths = _lengths(ids[-WINDOW_TOKENS:])
        self._window = ids[max(0, len(ids) - WINDOW_TOKENS) :]
        self._num_seen = len(ids)

    def penalties(self, plan: SamplerPlan, breakers: Set[int]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Ids that would lengthen a repetition, each once, and what to take from their logits."""
        none = np.zeros(0, np.int64), np.zeros(0, np.float32)
        allowed = plan.dry_allowed_length
        if len(self._window) <= allowed:
            return none
        # A copy may have begun before the window did.
        lengths = np.minimum(self._lengths, np.arange(1, len(self._window)))
        if int(lengths.max()) < allowed:
            return none
        limit = self._num_since_breaker(int(lengths.max()), breakers)
        if limit < allowed:
            return none
        lengths = np.minimum(lengths, limit)
        places = np.flatnonzero(lengths >= allowed)
        places = places[np.argsort(-lengths[places], kind="stable")]  # a token counts by its longest copy
        tokens, first = np.unique(self._window[places + 1], return_index=True)
        may_lose = np.array([int(token) not in breakers for token in tokens])
        tokens, longest = tokens[may_lose].astype(np.int64), lengths[places[first[may_lose]]]
        max_exponent = int(_MAX_EXPONENT_LOG / math.log(plan.dry_base)) if plan.dry_base > 1.000001 else 0
        exponents = longest - allowed
        if max_exponent > 0:
            exponents = np.minimum(exponents, max_exponent)
        penalties = plan.dry_multiplier * np.power(plan.dry_base, exponents.astype(np.float64))
        return tokens, np.minimum(penalties, _MAX_PENALTY).astype(np.float32)

    def _num_since_breaker(self, most: int, breakers: Set[int]) -> int:
        """How many of the newest `most` tokens come after the last breaker among them."""
        for count, token in enumerate(self._window[::-1][:most].tolist()):
            if token in breakers:
                return count
        return most


def _lengths(window: TokenIds) -> npt.NDArray[np.int32]:
    """The same from nothing: lengthen all copies of the newest token together, until none goes on."""
    lengths = np.zeros(max(0, len(window) - 1), np.int32)
    places = np.flatnonzero(window[:-1] == window[-1:]) if len(window) else np.zeros(0, np.int64)
    count = 0
    while len(places):
        count += 1
        lengths[places] = count
        places = places[places >= count]
        places = places[window[places - count] == window[-1 - count]]
    return lengths
