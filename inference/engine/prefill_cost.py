"""What prompt tokens add to a step, learned from the steps so far: a base that any chunk costs, and so much a token.

On a CPU the base is next to nothing; on a GPU it is another graph, and a chunk of 16 tokens costs nearly what one of 64
does. Recent steps count most. Pure arithmetic; the scheduler owns one.
"""

from __future__ import annotations

_FADING = 0.9  # of what is known already, at each new step
_LEAST_SPREAD = 0.2  # of the mean size: steps more alike than that say nothing of the base
_MAX_SURPRISE = 4.0  # a step counts for at most so many times what was expected: one hiccup must not empty the chunks


class CostLine:
    def __init__(self) -> None:
        self._weight = 0.0
        self._size = self._cost = 0.0  # weighted means
        self._size_square = self._product = 0.0

    @property
    def is_known(self) -> bool:
        return self._weight > 0.0

    @property
    def ms_per_token(self) -> float:
        """Of an average chunk, its base included; 0 = not measured."""
        return self._cost / self._size if self._size else 0.0

    def observe(self, num_tokens: int, ms: float, *, weight: float = 1.0) -> None:
        """A step held `num_tokens` of prompts and took `ms` more than without them."""
        if self.is_known:
            ms = min(ms, _MAX_SURPRISE * max(self.cost(num_tokens), self.ms_per_token * num_tokens))
        kept = self._weight * _FADING
        self._weight = kept + weight
        share = weight / self._weight
        self._size += share * (num_tokens - self._size)
        self._cost += share * (ms - self._cost)
        self._size_square += share * (num_tokens**2 - self._size_square)
        self._product += share * (num_tokens * ms - self._product)

    def cost(self, num_tokens: int) -> float:
        """Milliseconds that so many prompt tokens are expected to add."""
        base, per_token = self._line()
        return base + per_token * num_tokens

    def affordable(self, ms: float) -> int:
        """The most prompt tokens that are expected to add no more than `ms`; 0 when even one adds more."""
        base, per_token = self._line()
        if ms <= base or per_token <= 0.0:
            return 0
        return int((ms - base) / per_token)

    def _line(self) -> tuple[float, float]:
        spread = self._size_square - self._size**2
        if spread > (_LEAST_SPREAD * self._size) ** 2:
            per_token = (self._product - self._size * self._cost) / spread
            base = self._cost - per_token * self._size
            if base > 0.0 and per_token > 0.0:
                return base, per_token
        return 0.0, self.ms_per_token
