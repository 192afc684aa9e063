"""The logprobs of a row as the model gave it: before masks, biases, penalties and filters.

Pure; the sampler calls it, each thread for its rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from inference.engine.request import Logprobs
from inference.engine.sampling.top_k import ids_of, logits_of, sum_of


@dataclass(frozen=True)
class RawRow:
    """A row of logits and the log of its mass. `logits` must still be what the model gave when `of` is asked."""

    logits: npt.NDArray[np.float32]
    top: tuple[tuple[int, float], ...]
    log_mass: float  # of sum(exp(logit)); NaN for a bad row

    @classmethod
    def weigh(cls, logits: npt.NDArray[np.float32], keys: npt.NDArray[np.uint64], num_top: int) -> RawRow:
        """`keys` are at least one and at least `num_top` of the largest logits, as `Shortlister` gives them."""
        if not len(keys):
            return cls(logits, (), math.nan)
        ids, best = ids_of(keys), logits_of(keys)
        weights = logits - np.float32(best[0])
        np.exp(weights, out=weights)
        weights[ids] = 0.0
        # The best in float64 and only the others in float32: so probabilities never sum to more than 1.
        log_mass = float(best[0] + math.log(np.exp(best - best[0]).sum() + sum_of(weights)))
        shown = zip(ids[:num_top].tolist(), (best[:num_top] - log_mass).tolist(), strict=True)
        return cls(logits, tuple((token, min(value, 0.0)) for token, value in shown), log_mass)

    def of(self, token: int) -> Logprobs:
        return Logprobs(min(float(self.logits[token]) - self.log_mass, 0.0), self.top)
