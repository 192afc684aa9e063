"""A generation inside the engine: its tokens, how far they are evaluated, its slot, and its status.

Knows nothing of the backend. The scheduler reads it, the engine alone changes it, on the engine thread.
"""

from __future__ import annotations

from enum import Enum, auto
from uuid import UUID

from inference.engine.history import TokenHistory
from inference.engine.submission import Sink, Submission


class SequenceStatus(Enum):
    WAITING = auto()  # has no slot yet
    PREFILL = auto()  # its prompt (or, after a failed forward, all of it) is being read
    DECODE = auto()  # exactly one token, the newest, is not evaluated yet
    ENDED = auto()


_LEGAL_MOVES = {
    SequenceStatus.WAITING: {SequenceStatus.PREFILL, SequenceStatus.ENDED},
    SequenceStatus.PREFILL: {SequenceStatus.DECODE, SequenceStatus.PREFILL, SequenceStatus.ENDED},
    SequenceStatus.DECODE: {SequenceStatus.PREFILL, SequenceStatus.ENDED},
    SequenceStatus.ENDED: set[SequenceStatus](),
}


class Sequence:
    """`num_evaluated` of its tokens are in its slot's KV; `arrival` is its rank by time of submission."""

    def __init__(self, submission: Submission, *, context_tokens: int, arrival: int, arrived_at: float) -> None:
        num_given = len(submission.prompt) + len(submission.generated)
        self.key: UUID = submission.key
        self.plan = submission.plan
        self.max_tokens = submission.max_tokens
        self.salt = submission.salt
        self.priority = submission.priority
        self.sink: Sink = submission.sink
        self.arrival = arrival
        self.arrived_at = arrived_at
        self.history = TokenHistory(
            submission.prompt,
            submission.generated,
            capacity=max(num_given, min(context_tokens, len(submission.prompt) + submission.max_tokens)),
            counts_generated=submission.plan.counts_generated,
        )
        self.status = SequenceStatus.WAITING
        self.slot: int | None = None
        self.num_submitted = num_given  # tokens that came with the submission
        self.num_evaluated = 0
        self.num_cached = 0  # prompt tokens found in the prefix cache when it was seated
        self.last_chunk_step = 0  # the step that last prefilled some of it
        self.num_failures = 0  # forward calls with it on board that failed
        self.is_suspect = False  # was on board of a failed forward and has not been recomputed since
        self._context_tokens = context_tokens

    @property
    def num_tokens(self) -> int:
        return self.history.num_tokens

    @property
    def num_pending(self) -> int:
        """Tokens not evaluated yet; logits follow from the last of them."""
        return self.history.num_tokens - self.num_evaluated

    @property
    def is_full(self) -> bool:
        """Whether the answer must end here: `max_tokens` are there, or the context holds no more."""
        return self.history.num_generated >= self.max_tokens or self.history.num_tokens >= self._context_tokens

    @property
    def is_ended(self) -> bool:
        return self.status is SequenceStatus.ENDED

    def move(self, status: SequenceStatus) -> None:
        assert status in _LEGAL_MOVES[self.status], (self.status, status)
        self.status = status
