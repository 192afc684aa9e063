"""The checked sampler plan of one sequence, and its random draws.

A plan is only numbers, all of them resolved; `sampler.py` carries it out. Draws are counter-based: the uniform for
output position n depends on (seed, n) and on nothing else, so neither neighbours in the batch nor an interrupted
attempt can change what a sequence draws. Pure; any thread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from uuid import UUID

import numpy as np
import numpy.typing as npt

from inference.errors import InvalidRequest
from inference.messages.generation import SamplingParams

REPETITION_WINDOW_TOKENS = 64  # llama.cpp's own default; the prompt's end counts too
FORBIDDING_BIAS = -100.0  # a bias this low is meant as "never"

_MIN_FLOAT32_TEMPERATURE = 1e-3  # a smaller divisor turns small differences of logits into infinities in float32

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15  # the odd increment of SplitMix64 (Steele, Lea, Flood 2014)
_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


@dataclass(frozen=True, kw_only=True)
class SamplerPlan:
    """How to choose each token of one sequence.

    Applied in llama.cpp's order: logit_bias, penalties, DRY, top_k, typical_p, top_p, min_p, temperature, draw. So the
    filters look at the model's probabilities before temperature. `temperature` 0 takes the largest logit (the lowest
    id among equals). `top_k` 0, `typical_p` 1, `top_p` 1, `min_p` 0 and `dry_multiplier` 0 switch these off.
    Repetition looks at the last 64 tokens, prompt included, DRY at the last 1,024; presence and frequency at the
    generated ones alone. `logit_bias` are pairs of token id and bias; -100 forbids. `ignores_end` forbids the tokens
    that end an answer. `num_logprobs` None asks for none; n for the chosen token's and the n best of each position.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    logit_bias: tuple[tuple[int, float], ...] = ()
    ignores_end: bool = False
    num_logprobs: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        SamplingParams(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            typical_p=self.typical_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            dry_multiplier=self.dry_multiplier,
            dry_base=self.dry_base,
            dry_allowed_length=self.dry_allowed_length,
            logit_bias=dict(self.logit_bias),
            logprobs=self.num_logprobs,
            seed=self.seed,
        ).check()

    @classmethod
    def of(cls, params: SamplingParams, *, seed: int = 0) -> SamplerPlan:
        """The plan of `params`; what is still None there becomes neutral (temperature 1), its seed `seed`.

        Raises:
            InvalidRequest: a value is out of range; the sentence names it.
        """
        same_names = (
            *("temperature", "top_k", "top_p", "min_p", "typical_p"),
            *("repetition_penalty", "presence_penalty", "frequency_penalty"),
            *("dry_multiplier", "dry_base", "dry_allowed_length"),
        )
        given = {name: getattr(params, name) for name in same_names if getattr(params, name) is not None}
        return cls(
            **given,
            logit_bias=tuple(sorted((params.logit_bias or {}).items())),
            ignores_end=bool(params.ignore_eos),
            num_logprobs=params.logprobs,
            seed=seed if params.seed is None else params.seed,
        )

    def check_vocab(self, vocab_size: int) -> None:
        """Raise InvalidRequest when a biased token id is not in a vocabulary of that size."""
        for token, _ in self.logit_bias:
            if token >= vocab_size:
                raise InvalidRequest(
                    f"logit_bias names token {token}; this model has the tokens 0 to {vocab_size - 1}.",
                    param="logit_bias",
                )

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def counts_generated(self) -> bool:
        """Whether the sampler needs to know how often each generated id came."""
        return self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    @cached_property
    def edits_logits(self) -> bool:
        """Whether some logits change before the filters, but for the tokens that `ignores_end` forbids."""
        return (
            self.repetition_penalty != 1.0
            or self.counts_generated
            or self.dry_multiplier > 0.0
            or len(self.logit_bias) > 0
        )

    @cached_property
    def biases(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Ids of `logit_bias`, rising, and what to add to their logits: -inf for those it forbids."""
        values = [-np.inf if bias <= FORBIDDING_BIAS else bias for _, bias in self.logit_bias]
        return np.array([token for token, _ in self.logit_bias], np.int64), np.array(values, np.float32)

    @cached_property
    def numbers(self) -> tuple[float, float, float, float, float, float, float]:
        """The filters in numbers, one row of `filters.Filters`.

        How many of the largest logits are candidates (0: no such limit); typical_p; top_p; log(min_p); temperature; and
        for candidates that are not counted, how far below the largest they may lie and which part of all mass suffices.
        """
        count = 1 if self.is_greedy else self.top_k
        temperature = self.temperature or 1.0
        floor = math.log(self.min_p) if self.min_p > 0.0 else -math.inf
        if self.typical_p < 1.0:  # looks at all that top_k leaves, and may drop the largest
            return count, self.typical_p, self.top_p, floor, temperature, -math.inf, 1.0
        # What lies so low for its temperature has no weight: exp(-746) is 0 in float64.
        lowest = max(floor, -746.0 * temperature)
        return count, self.typical_p, self.top_p, floor, temperature, lowest, self.top_p

    @cached_property
    def is_unfiltered(self) -> bool:
        """Whether every token may be drawn, by temperature alone."""
        is_open = self.top_k == 0 and self.top_p == 1.0 and self.typical_p == 1.0 and self.min_p == 0.0
        return is_open and self.temperature >= _MIN_FLOAT32_TEMPERATURE

    def uniform(self, position: int) -> float:
        """The draw for output position `position` (0 = first generated token), in [0, 1)."""
        state = (self.mixed_seed + (position + 1) * _GAMMA) & _MASK
        return (_mix(state) >> 11) * 2.0**-53

    @cached_property
    def mixed_seed(self) -> int:
        # Mixed first: seeds that differ by the increment would otherwise give the same draws shifted.
        return _mix(self.seed & _MASK)


def uniforms(plans: Sequence[SamplerPlan], positions: Sequence[int]) -> npt.NDArray[np.float64]:
    """`plan.uniform(position)` of many plans at once."""
    return uniforms_of(np.array([plan.mixed_seed for plan in plans], np.uint64), np.array(positions, np.uint64))


def uniforms_of(mixed_seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """As `uniforms`, of plans' `mixed_seed`s."""
    states = mixed_seeds + (positions + np.uint64(1)) * np.uint64(_GAMMA)  # arrays wrap, as is meant
    for shift, factor in zip((30, 27), _FACTORS, strict=True):
        states ^= states >> np.uint64(shift)
        states *= np.uint64(factor)
    states ^= states >> np.uint64(31)
    draws: npt.NDArray[np.float64] = (states >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return draws


def seed_of(generation_id: UUID) -> int:
    """The seed of a generation that asked for none: the same for each of its attempts, different for each id."""
    high, low = generation_id.int >> 64, generation_id.int & _MASK
    return _mix((_mix(high) + low) & _MASK)


def _mix(value: int) -> int:
    """SplitMix64's finaliser: a bijection of 64 bits in which every input bit moves every output bit."""
    value = ((value ^ (value >> 30)) * _FACTORS[0]) & _MASK
    value = ((value ^ (value >> 27)) * _FACTORS[1]) & _MASK
    return value ^ (value >> 31)
