"""What is settled about an answer before its first token: prompt, sampling, given beginning, constraint, room.

Owns the order in which these follow from a request and from what the log holds already. Knows no log, no engine thread
and no Redis. `attempt.generation` makes one per attempt, in the thread of one generation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inference.engine.constraint import Constraint
from inference.engine.sampling.plan import SamplerPlan, seed_of
from inference.messages.generation import Cut, GenerationRequest, SamplingParams
from inference.output.deltas import OutputPipeline
from inference.prompt.builder import Prompt
from inference.worker.attempt.assistant_prefix import Recital
from inference.worker.attempt.context import Served


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """`opening` are the tokens of the given beginning. `max_tokens` counts the whole answer, the opening included;
    `cut` says which limit that is. Where the whole answer is given, `recital` tells it instead of the engine."""

    prompt: Prompt
    sampling: SamplingParams
    plan: SamplerPlan
    opening: list[int]
    constraint: Constraint | None
    max_tokens: int
    cut: Cut
    recital: Recital | None

    @classmethod
    def of(cls, model: Served, request: GenerationRequest, written: Sequence[int]) -> Preparation:
        """For an answer of which the log holds the tokens `written`.

        Raises:
            InvalidRequest: the model cannot answer this; the sentence says why.
        """
        request = model.settled(request)
        prompt = model.prompts.build(request)
        sampling = model.sampling_of(request)
        plan = SamplerPlan.of(sampling, seed=seed_of(request.id))
        opening = model.opening_tokens(request, prompt)
        # What the log holds of an opening is its beginning, or all of it and more.
        generated = written if len(written) > len(opening) else opening
        constraint = model.constraint_for(request, sampling, prompt, generated)
        room = model.context_tokens - len(prompt.tokens)
        asked = sampling.max_tokens + len(opening) if sampling.max_tokens else None
        max_tokens = room if asked is None else min(asked, room)
        given = request.opening
        recital = Recital(opening, given.tokens_per_second) if given is not None and given.is_whole else None
        return cls(
            prompt=prompt,
            sampling=sampling,
            plan=plan,
            opening=opening,
            constraint=constraint,
            max_tokens=max_tokens if recital is None else len(opening) + 1,
            cut="max_tokens" if max_tokens == asked else "context",
            recital=recital,
        )

    def pipeline(self, model: Served, request: GenerationRequest) -> OutputPipeline:
        """What makes text of the answer's tokens."""
        return OutputPipeline(
            model.token_bytes,
            think_tags=model.think_tags_for(request),
            starts_thinking=self.prompt.starts_thinking,
            calls=model.calls_in(request),
            stop=self.sampling.stop,
            drops_space=self.prompt.adds_space,
            given=self.prompt.given,
        )

    @property
    def watches_for_loops(self) -> bool:
        """Whoever forbids the end wants every token, whatever they say; and what is given is nobody's loop."""
        return not self.sampling.ignore_eos and self.recital is None
