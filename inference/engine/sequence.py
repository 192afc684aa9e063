"""A generation inside the engine: its tokens, how far they are evaluated, its slot, and its status.

Knows nothing of the backend. The scheduler reads it, the engine alone changes it, on the engine thread.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Literal
from uuid import UUID

from inference.engine.request import Sink, Submission
from inference.engine.sampling.excerpt import is_enough_for
from inference.engine.sampling.token_history import TokenHistory


class SequenceStatus(Enum):
    WAITING = auto()  # has no slot: not yet, or not any more
    PREFILL = auto()  # its prompt (or, after a failed forward, all of it) is being read
    DECODE = auto()  # exactly one token, the newest, is not evaluated yet
    ENDED = auto()


_LEGAL_MOVES = {
    SequenceStatus.WAITING: {SequenceStatus.PREFILL, SequenceStatus.ENDED},
    SequenceStatus.PREFILL: {
        SequenceStatus.WAITING,
        SequenceStatus.DECODE,
        SequenceStatus.PREFILL,
        SequenceStatus.ENDED,
    },
    SequenceStatus.DECODE: {SequenceStatus.WAITING, SequenceStatus.PREFILL, SequenceStatus.ENDED},
    SequenceStatus.ENDED: set[SequenceStatus](),
}


class Sequence:
    """`num_evaluated` of its tokens are in its slot's KV; `arrival` is its rank by time of submission.

    `context_tokens` is the most it may ever have, prompt and answer together.
    """

    def __init__(self, submission: Submission, *, context_tokens: int, arrival: int, arrived_at: float) -> None:
        num_given = len(submission.prompt) + len(submission.generated)
        self.key: UUID = submission.key
        self.plan = submission.plan
        self.max_tokens = submission.max_tokens
        self.salt = submission.salt
        self.num_shared = submission.num_shared
        self.constraint = submission.constraint
        # A constraint that is open now may close later; then the loop sets this.
        is_held = submission.constraint is not None and not submission.constraint.is_open
        self.wants_whole_rows = is_held or not is_enough_for(submission.plan)
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
        self.num_to_read = 0  # pending tokens when it was seated
        self.last_chunk_step = 0  # the step that last prefilled some of it
        self.num_preemptions = 0  # times it had to give up its slot; it keeps its tokens, and goes on where it was
        self.num_failures = 0  # forward calls with it on board that failed
        self.is_suspect = False  # was on board of a failed forward and has not been recomputed since
        self.context_tokens = context_tokens

    @property
    def num_tokens(self) -> int:
        return self.history.num_tokens

    @property
    def num_pending(self) -> int:
        """Tokens not evaluated yet; logits follow from the last of them."""
        return self.history.num_tokens - self.num_evaluated

    @property
    def full_by(self) -> Literal["", "max_tokens", "context"]:
        """Why the answer must end here: `max_tokens` are there, or the context holds no more. "" when it need not."""
        if self.history.num_generated >= self.max_tokens:
            return "max_tokens"
        return "context" if self.history.num_tokens >= self.context_tokens else ""

    @property
    def is_full(self) -> bool:
        """Whether the answer must end here."""
        return self.full_by != ""

    @property
    def is_ended(self) -> bool:
        return self.status is SequenceStatus.ENDED

    def move(self, status: SequenceStatus) -> None:
        assert status in _LEGAL_MOVES[self.status], (self.status, status)
        self.status = status
