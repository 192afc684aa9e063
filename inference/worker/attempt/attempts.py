"""The attempts under way in this process, and how other threads speak to the thread that runs one.

Owns the table and each attempt's inbox. Knows no Redis and no engine. The task thread begins, reads and ends an
attempt; publisher, renewal, cancellation and drain only look and tell.
"""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import dataclass
from enum import Enum
from queue import SimpleQueue
from uuid import UUID, uuid4

from inference.coordination.waiting_room import Claim
from inference.engine.request import Ended, Output, Reading, Token
from inference.messages.generation import GenerationRequest


class Notice(Enum):
    """What an attempt is told from outside the engine."""

    STOP = "stop"  # its user wants it ended; what is written stays
    LOST = "lost"  # it may write no more: the ticket or the lease is gone
    HAND_ON = "hand_on"  # this worker stops; another goes on
    GIVE_UP = "give_up"  # this worker fails under its answers; another goes on, and the attempt counts as lost
    FINISHED = "finished"  # its finish is in the log


@dataclass(frozen=True)
class Arrived:
    """A token as the engine gave it, and when: it may lie in the inbox for a while."""

    token: Token
    at: float  # of the monotonic clock


class Attempt:
    """One try at a generation. `key` names its sequence in the engine: a generation claimed again by the same process
    must not be mistaken for the attempt it replaces."""

    def __init__(self, claim: Claim) -> None:
        self.request: GenerationRequest = claim.request
        self.generation_id: UUID = claim.request.id
        self.ticket = claim.ticket
        self.num_lost = claim.num_lost
        self.key = uuid4()
        self.inbox: SimpleQueue[Arrived | Reading | Ended | Notice] = SimpleQueue()
        self.began_at = time.monotonic()
        self.renewed_at = self.began_at  # of the monotonic clock: when the lease was last known to stand
        self.let_go = threading.Event()  # it writes nothing more, and Redis knows how it ended if it could be told
        self._told: set[Notice] = set()
        self._is_urgent = False  # something lay in the inbox that should not wait for more
        self._num_enough = sys.maxsize  # so many things in the inbox are worth waking for
        self._has_enough = threading.Event()

    def hear(self, output: Output) -> None:
        """Take what the engine says; its sink, on its thread."""
        if isinstance(output, Token):
            self.inbox.put(Arrived(output, time.monotonic()))
            if self.inbox.qsize() >= self._num_enough:
                self._has_enough.set()
        else:
            self.inbox.put(output)
            if isinstance(output, Ended):
                self._hurry()

    def tell(self, notice: Notice) -> None:
        """Put a notice into the inbox; the same one only once, however often it is seen. From any thread."""
        if notice not in self._told:
            self._told.add(notice)
            self.inbox.put(notice)
            self._hurry()

    def wait_for_more(self, seconds: float, num_enough: int) -> None:
        """Let things gather in the inbox: until there are so many, or one that is urgent, or the time is over. Called
        by the one thread that empties it."""
        self._num_enough = num_enough
        self._has_enough.clear()  # whatever comes from here on sets it again; what came before is seen now
        if not self._is_urgent and self.inbox.qsize() < num_enough:
            self._has_enough.wait(seconds)
        self._num_enough = sys.maxsize

    def _hurry(self) -> None:
        self._is_urgent = True
        self._has_enough.set()


class Attempts:
    def __init__(self) -> None:
        self._by_ticket: dict[str, Attempt] = {}
        self._lock = threading.Lock()

    def begin(self, claim: Claim) -> Attempt:
        attempt = Attempt(claim)
        with self._lock:
            self._by_ticket[attempt.ticket] = attempt
        return attempt

    def end(self, attempt: Attempt) -> None:
        attempt.let_go.set()
        with self._lock:
            del self._by_ticket[attempt.ticket]

    def all(self) -> list[Attempt]:
        with self._lock:
            return list(self._by_ticket.values())

    def tell(self, generation_id: UUID, notice: Notice) -> None:
        """Tell every attempt at this generation here; unknown ones are somebody else's."""
        for attempt in self.all():
            if attempt.generation_id == generation_id:
                attempt.tell(notice)

    def tell_all(self, notice: Notice) -> None:
        for attempt in self.all():
            attempt.tell(notice)
