"""What a benchmark sends: conversations of wanted lengths, the same for the same seed, whoever answers them.

Words are drawn at random, so that no two prompts share a prefix beyond the template's own, and nothing is served from
a cache but what the workload means to share. Knows nothing of engines, servers or the clock, but for the gaps between
arrivals, which are drawn here too.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import msgspec

from inference.errors import ConfigError
from inference.messages.generation import SamplingParams

# Common words that byte-level BPE vocabularies hold as one token each; a prompt of n words has close to n tokens.
WORDS = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city community name president team minute idea kid body back "
    "parent face others level office door health person art war history party result change morning reason research"
).split()

Kind = Literal["random", "shared-prefix", "multi-turn"]
KINDS: tuple[Kind, ...] = ("random", "shared-prefix", "multi-turn")


@dataclass(frozen=True)
class Lengths:
    """A mix of lengths in tokens: any of `values`, equally likely, or uniformly between `low` and `high`."""

    values: tuple[int, ...] = ()
    low: int = 0
    high: int = 0

    @classmethod
    def parse(cls, text: str) -> Lengths:
        """`128`, `64,512,2048` or `64-1024`. Raises ConfigError: it is none of these, or a length is below 1."""
        low, dash, high = text.partition("-")
        try:
            if dash:
                mix = cls(low=int(low), high=int(high))
            else:
                mix = cls(values=tuple(int(word) for word in text.split(",")))
        except ValueError:
            raise ConfigError(f"A length is written 128, 64,512 or 64-1024, not {text!r}.") from None
        if min(mix.values or (mix.low,)) < 1 or mix.high < mix.low:
            raise ConfigError(f"Lengths are at least 1 and ranges rise, unlike {text!r}.")
        return mix

    @classmethod
    def fixed(cls, length: int) -> Lengths:
        return cls(values=(length,))

    @property
    def longest(self) -> int:
        return max(self.values) if self.values else self.high

    def draw(self, rng: random.Random) -> int:
        return rng.choice(self.values) if self.values else rng.randint(self.low, self.high)


@dataclass(frozen=True)
class Turn:
    """One message of a person, and how many tokens its answer shall have."""

    text: str
    max_tokens: int


@dataclass(frozen=True)
class Conversation:
    """`turns` are sent one after the other, each once the answer before it has come. `number` counts from 0."""

    number: int
    turns: tuple[Turn, ...]
    system: str = ""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """`num_conversations` of one kind. `random` and `shared-prefix` have one turn each.

    `prompt_tokens` is the new text of a turn; `prefix_tokens` the system message that all share (`shared-prefix`).
    `words_less` is taken off every text, for a template that adds as many tokens by itself.
    """

    kind: Kind = "random"
    num_conversations: int
    prompt_tokens: Lengths
    max_tokens: Lengths
    turns: int = 1
    prefix_tokens: int = 512
    words_less: int = 0
    seed: int = 0

    @property
    def num_turns(self) -> int:
        return self.turns if self.kind == "multi-turn" else 1

    @property
    def num_requests(self) -> int:
        return self.num_conversations * self.num_turns

    @property
    def longest_tokens(self) -> int:
        """What the longest conversation may fill, the template's own tokens not counted."""
        prefix = self.prefix_tokens if self.kind == "shared-prefix" else 0
        return prefix + self.num_turns * (self.prompt_tokens.longest + self.max_tokens.longest)

    def conversations(self) -> Iterator[Conversation]:
        rng = random.Random(self.seed)
        system = words(rng, self.prefix_tokens) if self.kind == "shared-prefix" else ""
        for number in range(self.num_conversations):
            turns = tuple(
                Turn(words(rng, self.prompt_tokens.draw(rng) - self.words_less), self.max_tokens.draw(rng))
                for _ in range(self.num_turns)
            )
            yield Conversation(number, turns, system)

    def arrivals(self, rate: float) -> Iterator[float]:
        """When each conversation begins, in seconds from the start: Poisson, `rate` a second."""
        rng = random.Random(f"arrivals {self.seed}")
        at = 0.0
        for _ in range(self.num_conversations):
            at += rng.expovariate(rate)
            yield at

    def warm_up(self, num_conversations: int) -> Workload:
        """A short one with texts of its own, to be run before anything is measured."""
        return replace(
            self,
            kind="random",
            num_conversations=num_conversations,
            max_tokens=Lengths.fixed(8),
            seed=self.seed ^ 0x5EED,
        )


def words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choices(WORDS, k=max(1, count)))


def default_sampling(**changes: float | int | None) -> SamplingParams:
    """What llama.cpp's server does when it is told nothing, so that both sides do the same work."""
    plain = SamplingParams(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05)
    return msgspec.structs.replace(plain, **{k: v for k, v in changes.items() if v is not None}).check()
