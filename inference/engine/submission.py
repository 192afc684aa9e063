"""What goes into the engine and what comes out: a submission, and the outputs its sink receives.

Callers build a `Submission`; the engine answers through `Submission.sink`, on its own thread, with `Reading`s, then
`Token`s, then exactly one `Ended`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from inference.engine.backend import TokenIds
from inference.engine.sampling import SamplerPlan
from inference.protocol import ErrorFacts, FinishReason


@dataclass(frozen=True)
class Reading:
    """How far the prompt is read: `num_done` of `num_total` tokens, `num_cached` of them from the prefix cache.

    For a continued answer the tokens of earlier attempts count as prompt here, since they are read again.
    """

    num_done: int
    num_total: int
    num_cached: int


@dataclass(frozen=True)
class Token:
    """The next token of the answer. An end-of-generation token is not delivered: Ended(STOP) comes in its place."""

    id: int


@dataclass(frozen=True)
class Ended:
    """Always the last output. `num_cached` tokens of the prompt came from the prefix cache; `error` with ERROR, and
    with CANCELLED when it was the engine that stopped."""

    reason: FinishReason
    num_cached: int
    error: ErrorFacts | None


Output = Reading | Token | Ended
Sink = Callable[[Output], None]  # called on the engine thread; must only enqueue


@dataclass(frozen=True)
class Submission:
    """One generation for the engine. `generated` are tokens of earlier attempts: they are read, not delivered again.

    `max_tokens` counts all of the answer, `generated` included. `priority` 0 is a person waiting; larger is less
    urgent. Cached tokens are shared only between submissions of the same `salt`.
    """

    key: UUID
    prompt: TokenIds
    generated: TokenIds
    plan: SamplerPlan
    max_tokens: int
    salt: str
    priority: int
    sink: Sink
