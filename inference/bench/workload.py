"""What a benchmark sends: chat requests of a wanted length, the same for the same seed, whoever answers them.

Words are drawn at random, so that no two prompts share a prefix beyond the template's own and nothing is served from a
cache by accident.
"""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass

from inference.protocol import ChatMessage, GenerationRequest, Role, SamplingParams

# Common words that byte-level BPE vocabularies hold as one token each; a prompt of n words has close to n tokens.
WORDS = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city community name president team minute idea kid body back "
    "parent face others level office door health person art war history party result change morning reason research"
).split()


@dataclass(frozen=True, kw_only=True)
class Workload:
    """`num_requests` requests of about `prompt_tokens` tokens each that want `max_tokens` new ones."""

    model: str
    num_requests: int
    prompt_tokens: int
    max_tokens: int
    seed: int = 0

    def requests(self) -> list[GenerationRequest]:
        rng = random.Random(self.seed)
        return [self._request(rng, number) for number in range(self.num_requests)]

    def _request(self, rng: random.Random, number: int) -> GenerationRequest:
        text = " ".join(rng.choices(WORDS, k=max(1, self.prompt_tokens)))
        return GenerationRequest(
            id=uuid.UUID(int=rng.getrandbits(128), version=4),
            model=self.model,
            user_key=f"bench-{number}",
            messages=(ChatMessage(role=Role.USER, content=text),),
            sampling=SamplingParams(temperature=0.7, top_k=40, seed=number, max_tokens=self.max_tokens),
            date="2026-01-01",
        )
