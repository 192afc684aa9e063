"""News of one attempt on its way into the log: gathered, numbered, sent once.

Owns the order and the numbers: an entry that is sent again keeps its seq, so the log takes it once. Knows no Redis and
has no thread: the publisher holds its lock around every call that changes what is gathered, and alone touches what is
under way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from inference.messages.generation import Delta, Event, EventKind, Finish, TokenLogprob
from inference.output.deltas import merged
from inference.worker.attempt.attempts import Attempt

MAX_UNSENT_TOKENS = 65_536  # while Redis is away; far above what one lease of decoding writes


class Outbox:
    """`last_seq` is the newest entry of the log when the attempt begins.

    What is gathered becomes at most one delta entry per flush. An entry's deltas are exactly the text its tokens
    complete, so replaying logged tokens rebuilds the logged text.
    """

    def __init__(self, attempt: Attempt, last_seq: int) -> None:
        self.attempt = attempt
        self.last_seq = last_seq
        self.is_open = True
        self.due_at = math.inf  # of the monotonic clock: when something gathered should leave
        self.failing_since: float | None = None
        self.under_way: list[Event] = []  # numbered and handed to Redis, in order; empty once acknowledged
        self.last_delta: Event | None = None  # rides with the finish, so that text held back and end are one write
        self.finish: Finish | None = None
        self.is_ending = False  # `finish` is under way
        self.is_finish_uncertain = False  # it was sent, and no reply came
        self._closed_events: list[Event] = []
        self._tokens: list[int] = []
        self._deltas: list[Delta] = []
        self._logprobs: list[TokenLogprob] = []
        self._has_sent_delta = False

    @property
    def has_news(self) -> bool:
        return bool(
            self._closed_events or self._deltas or self._tokens or self.under_way or (self.finish and self.is_open)
        )

    @property
    def num_unsent_tokens(self) -> int:
        return len(self._tokens)

    def add(self, event: Event, now: float) -> None:
        """An event of another kind than delta: due at once. Unsent progress is replaced by newer progress."""
        self._close_delta()
        if event.kind is EventKind.PROGRESS and self._closed_events and self._closed_events[-1].kind is event.kind:
            self._closed_events[-1] = event
        else:
            self._closed_events.append(event)
        self.due_at = now

    def add_deltas(
        self,
        tokens: Sequence[int],
        deltas: Sequence[Delta],
        logprobs: Sequence[TokenLogprob],
        now: float,
        *,
        flush_seconds: float,
        flush_tokens: int,
    ) -> None:
        """Tokens and the text they complete. The attempt's first text is due at once, later text after a while.

        Tokens without text wait for the text that follows them.
        """
        self._gather(tokens, deltas, logprobs)
        if not self._has_sent_delta and self._deltas:
            self.due_at = now
            self._has_sent_delta = True
        elif len(self._tokens) >= flush_tokens:
            self.due_at = now
        elif deltas:
            self.due_at = min(self.due_at, now + flush_seconds)

    def end(
        self,
        finish: Finish,
        tokens: Sequence[int],
        deltas: Sequence[Delta],
        logprobs: Sequence[TokenLogprob],
        now: float,
    ) -> None:
        """Nothing follows but these and the finish."""
        self._gather(tokens, deltas, logprobs)
        self.finish = finish
        self.due_at = now

    def load(self) -> None:
        """Number what was gathered and move it under way. What is under way already stays in front."""
        if not self.is_ending:
            self._close_delta()
            gathered, self._closed_events = self._closed_events, []
            if self.finish is not None:
                self.is_ending = True
                if gathered and gathered[-1].kind is EventKind.DELTA:
                    self.last_delta = gathered.pop()
            first = self.last_seq + 1 + len(self.under_way)
            self.under_way += [msgspec.structs.replace(event, seq=first + i) for i, event in enumerate(gathered)]
        self.due_at = math.inf

    def acknowledge(self, event: Event, seq: int) -> None:
        """The log has `event`, the first one under way, as `seq`."""
        assert self.under_way[0] is event
        del self.under_way[0]
        self.last_seq = seq

    def _gather(self, tokens: Sequence[int], deltas: Sequence[Delta], logprobs: Sequence[TokenLogprob]) -> None:
        self._tokens += tokens
        self._deltas += deltas
        self._logprobs += logprobs

    def _close_delta(self) -> None:
        if self._tokens or self._deltas:
            self._closed_events.append(
                Event(
                    kind=EventKind.DELTA,
                    deltas=tuple(merged(self._deltas)),
                    tokens=tuple(self._tokens),
                    logprobs=tuple(self._logprobs),
                )
            )
            self._tokens, self._deltas, self._logprobs = [], [], []
