"""The checked sampler plan of one sequence, and its random draws.

A plan is only numbers, all of them resolved; `sampler.py` carries it out. Draws are counter-based: the uniform for
output position n depends on (seed, n) and on nothing else, so neither neighbours in the batch nor an interrupted
attempt can change what a sequence draws. Pure; any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from inference.protocol import SamplingParams

REPETITION_WINDOW_TOKENS = 64  # llama.cpp's own default; the prompt's end counts too

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15  # the odd increment of SplitMix64 (Steele, Lea, Flood 2014)


@dataclass(frozen=True, kw_only=True)
class SamplerPlan:
    """How to choose each token of one sequence.

    Applied in llama.cpp's order: penalties, top_k, top_p, min_p, temperature, draw. So top_p and min_p look at the
    model's probabilities before temperature. `temperature` 0 takes the largest logit (the lowest id among equals).
    `top_k` 0, `top_p` 1 and `min_p` 0 switch these off. Repetition looks at the last 64 tokens, prompt included;
    presence and frequency at the generated ones alone.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        SamplingParams(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            seed=self.seed,
        ).check()

    @classmethod
    def of(cls, params: SamplingParams, *, seed: int = 0) -> SamplerPlan:
        """The plan of `params`; what is still None there becomes neutral (temperature 1), its seed `seed`.

        Raises:
            InvalidRequest: a value is out of range; the sentence names it.
        """
        neutral = SamplingParams(
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            min_p=0.0,
            repetition_penalty=1.0,
            presence_penalty=0.0,
            frequency_penalty=0.0,
            seed=seed,
        )
        full = params.over(neutral)
        return cls(**{name: getattr(full, name) for name in cls.__dataclass_fields__})

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def counts_generated(self) -> bool:
        """Whether the sampler needs to know how often each generated id came."""
        return self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    def uniform(self, position: int) -> float:
        """The draw for output position `position` (0 = first generated token), in [0, 1)."""
        # The seed is mixed first: seeds that differ by the increment would otherwise give the same draws shifted.
        state = (_mix(self.seed & _MASK) + (position + 1) * _GAMMA) & _MASK
        return (_mix(state) >> 11) * 2.0**-53


def seed_of(generation_id: UUID) -> int:
    """The seed of a generation that asked for none: the same for each of its attempts, different for each id."""
    high, low = generation_id.int >> 64, generation_id.int & _MASK
    return _mix((_mix(high) + low) & _MASK)


def _mix(value: int) -> int:
    """SplitMix64's finaliser: a bijection of 64 bits in which every input bit moves every output bit."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
