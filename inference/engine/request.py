"""What goes into the engine and what comes out: a submission, and the outputs its sink receives.

Callers build a `Submission`; the engine answers through `Submission.sink`, on its own thread, with `Reading`s, then
`Token`s, then exactly one `Ended`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from inference.engine.constraint import Constraint
from inference.engine.logits import TokenIds
from inference.engine.sampling.plan import SamplerPlan
from inference.messages.generation import ErrorFacts, FinishReason


@dataclass(frozen=True)
class Reading:
    """How far the prompt is read: `num_done` of `num_total` tokens, `num_cached` of them from the prefix cache.

    For a continued answer the tokens of earlier attempts count as prompt here, since they are read again.
    """

    num_done: int
    num_total: int
    num_cached: int


@dataclass(frozen=True)
class Logprobs:
    """Natural logs of the probabilities before penalties and filters: of the chosen token and of the best ones."""

    chosen: float
    top: tuple[tuple[int, float], ...]  # token id, logprob; best first


@dataclass(frozen=True)
class Token:
    """The next token of the answer. An end-of-generation token is not delivered: Ended(STOP) comes in its place."""

    id: int
    logprobs: Logprobs | None = None  # where the plan asks for them


@dataclass(frozen=True)
class Ended:
    """Always the last output. `num_cached` tokens of the prompt came from the prefix cache; `error` with ERROR, and
    with CANCELLED when it was the engine that stopped. `cut` says which limit made the reason LENGTH."""

    reason: FinishReason
    num_cached: int
    error: ErrorFacts | None
    cut: Literal["", "max_tokens", "context"] = ""


Output = Reading | Token | Ended
Sink = Callable[[Output], None]  # called on the engine thread; must only enqueue


@dataclass(frozen=True)
class Submission:
    """One generation for the engine. `generated` are tokens of earlier attempts: they are read, not delivered again.

    `max_tokens` counts all of the answer, `generated` included. `priority` 0 is a person waiting; larger is less
    urgent. Cached tokens are shared only between submissions of the same `salt`, but for the first `num_shared` of
    the prompt, which hold nothing of any person's. `constraint`, already past `generated`, says what may come next.
    """

    key: UUID
    prompt: TokenIds
    generated: TokenIds
    plan: SamplerPlan
    max_tokens: int
    salt: str
    priority: int
    sink: Sink
    num_shared: int = 0
    constraint: Constraint | None = None
