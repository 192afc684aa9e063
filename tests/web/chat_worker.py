"""A worker whose every step the test makes: it claims through the real waiting room and writes the real log."""

from __future__ import annotations

import hashlib
import time
from typing import Any
from uuid import UUID

import redis as redis_py

from inference.config import InferenceConfig
from inference.coordination.event_log import EventLog
from inference.coordination.lease import Leases
from inference.coordination.registry import Registry
from inference.coordination.waiting_room import Claim, WaitingRoom
from inference.messages.cards import ModelCard, WorkerCard
from inference.messages.generation import (
    Delta,
    ErrorFacts,
    Event,
    EventKind,
    Finish,
    FinishReason,
    ToolCallDelta,
    Usage,
)

MODEL = "scripted"


class StepWorker:
    def __init__(self, redis: redis_py.Redis, config: InferenceConfig, name: str = "step-1") -> None:
        self.name = name
        self.redis = redis
        self.room = WaitingRoom(redis, config)
        self.log = EventLog(redis, config)
        self.leases = Leases(redis, config)
        self.registry = Registry(redis)

    def announce(self, *, kit: bytes | None = None, context_tokens: int = 400, state: str = "ready") -> None:
        key = self.registry.store_kit(kit) if kit else "none"
        model = ModelCard(
            name=MODEL, title="Scripted", architecture="none", context_tokens=context_tokens, prompt_kit=key
        )
        now = time.time()
        card = WorkerCard(
            name=self.name,
            model=model,
            num_slots=2,
            num_free_slots=2,
            device="test",
            started_at=now,
            seen_at=now,
            state=state,  # type: ignore[arg-type]
        )
        self.registry.announce(card, ttl_seconds=600)

    def claim(self) -> Attempt:
        claim = self.room.claim(MODEL, self.name)
        assert isinstance(claim, Claim), claim
        return Attempt(self, claim)


class Attempt:
    """One try at one generation."""

    def __init__(self, worker: StepWorker, claim: Claim) -> None:
        self.worker = worker
        self.claim = claim
        self.id: UUID = claim.request.id
        found = worker.log.read(self.id)
        self.text = found.text("content")
        self._num_tokens = sum(len(event.tokens) for event in found.events)

    def start(self) -> Attempt:
        self._append(Event(kind=EventKind.STARTED, worker=self.worker.name))
        return self

    def progress(self, num_done: int, num_total: int) -> None:
        self._append(Event(kind=EventKind.PROGRESS, num_done=num_done, num_total=num_total))

    def write(self, *pieces: str) -> None:
        for piece in pieces:
            self.text += piece
            self._append(Event(kind=EventKind.DELTA, deltas=(Delta("content", piece),), tokens=(1,)))

    def think(self, *pieces: str) -> None:
        for piece in pieces:
            self._append(Event(kind=EventKind.DELTA, deltas=(Delta("reasoning", piece),), tokens=(1,)))

    def call(self, name: str, arguments: str, *, index: int = 0) -> None:
        """As the worker tells it: the head with id and name first, then the arguments in two pieces."""
        half = len(arguments) // 2
        self._piece(ToolCallDelta(index, id=f"call_{index}_{self.id.hex[-6:]}", name=name))
        self._piece(ToolCallDelta(index, arguments=arguments[:half]))
        self._piece(ToolCallDelta(index, arguments=arguments[half:]))

    def _piece(self, piece: ToolCallDelta) -> None:
        self._append(Event(kind=EventKind.DELTA, deltas=(Delta("tool_call", "", piece),), tokens=(1,)))

    def finish(self, reason: FinishReason = FinishReason.STOP, error: ErrorFacts | None = None, **facts: Any) -> None:
        finish = Finish(
            reason=reason,
            **facts,
            usage=Usage(prompt_tokens=11, cached_tokens=4, completion_tokens=7, reasoning_tokens=3),
            content_sha256=hashlib.sha256(self.text.encode()).hexdigest(),
            num_chars=len(self.text),
            error=error,
            worker=self.worker.name,
            decode_seconds=0.5,
        )
        num_missing = finish.usage.completion_tokens - self._num_tokens  # a worker's log has all tokens it reports
        last = Event(kind=EventKind.DELTA, tokens=(1,) * num_missing) if num_missing > 0 else None
        assert self.worker.log.finish(self.id, self.claim.ticket, finish, last).seq is not None

    def _append(self, event: Event) -> None:
        self._num_tokens += len(event.tokens)
        (appended,) = self.worker.log.append([(self.id, self.claim.ticket, event)])
        assert appended.seq is not None
