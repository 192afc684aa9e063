"""The status line of an unfinished answer: where it waits, how far its prompt is read, how fast it is written.

Part of it comes with the log's events, part must be asked of Redis while the log is silent. Knows no HTML and no
Postgres. One `Progress` belongs to one viewer, on the event loop.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any
from uuid import UUID

from inference.client import AsyncInferenceClient
from inference.errors import LogUnreadable, StoreUnavailable
from inference.messages.cards import WorkerCard
from inference.messages.generation import Event, EventKind, Standing

ASK_SECONDS = 1.0  # between questions about a generation whose log is silent
SILENT_SECONDS = 3.0  # a running answer that says nothing for so long may have lost its worker
RATE_SECONDS = 5.0  # tokens per second are those of so long
MIN_RATE_SECONDS = 0.5
NUMBERS_SECONDS = 1.0  # a status that differs in numbers alone is told this often
RATE_CHANGE = 0.1  # and tokens per second only when they changed by this part: nobody sees less, and it costs bytes

PHASES = {"reasoning": "thinking", "tool_call": "calling", "content": "writing"}
WAITING = ("waiting", "loading", "no_worker", "recovering")


class Fleet:
    """Live workers, asked for at most once a second by all viewers of a process together."""

    def __init__(self, client: AsyncInferenceClient) -> None:
        self._client = client
        self._cards: list[WorkerCard] = []
        self._asked_at = float("-inf")

    async def states(self, model: str) -> set[str]:
        """States of the live workers that serve `model`, or are about to. Raises StoreUnavailable."""
        if time.monotonic() > self._asked_at + ASK_SECONDS:
            self._asked_at = time.monotonic()
            self._cards = await self._client.workers()
        coming = {"loading" for card in self._cards if card.next_model == model}
        return {card.state for card in self._cards if card.model.name == model} | coming


class Progress:
    def __init__(self, client: AsyncInferenceClient, fleet: Fleet, generation_id: UUID, model: str) -> None:
        self._client = client
        self._fleet = fleet
        self._generation_id = generation_id
        self._model = model
        self._status: dict[str, Any] = {"phase": "waiting"}
        self._told: dict[str, Any] = {}
        self._told_at = float("-inf")
        self._asked_at = float("-inf")
        self._heard_at = time.monotonic()
        self._has_begun = False  # a worker took it
        self._worker = ""
        self._num_tokens = 0
        self._counts: deque[tuple[float, int]] = deque()

    def restart(self) -> None:
        """Another log began."""
        self._status, self._has_begun, self._num_tokens = {"phase": "recovering"}, False, 0
        self._counts.clear()

    def note(self, events: list[Event]) -> None:
        """Take what came of the log, at one time."""
        self._heard_at = time.monotonic()
        for event in events:
            self._num_tokens += len(event.tokens)
            match event.kind:
                case EventKind.STARTED:
                    self._has_begun = True
                    self._worker = event.worker
                    self._status = self._running("reading")
                case EventKind.PROGRESS:
                    self._has_begun = True
                    self._status = self._running("reading", done=event.num_done, total=event.num_total)
                case EventKind.DELTA:
                    self._has_begun = True
                    phase = PHASES[event.deltas[-1].kind if event.deltas else "content"]
                    self._status = self._running(phase, tokens=self._num_tokens)
        if "tokens" in self._status:
            self._measure()

    def is_due(self) -> bool:
        """Whether Redis should be asked, because the log alone does not say how it stands."""
        now = time.monotonic()
        is_silent = not self._has_begun or self._status["phase"] in WAITING or now > self._heard_at + SILENT_SECONDS
        return is_silent and now >= self._asked_at + ASK_SECONDS

    async def ask(self) -> bool:
        """Ask Redis where it stands. True when Postgres may know more: it is recorded, or Redis does not know it."""
        self._asked_at = time.monotonic()
        try:
            standing = await self._client.standing(self._generation_id)
            self._status = await self._status_of(standing)
        except (StoreUnavailable, LogUnreadable):
            self._status = {"phase": "recovering"}
            return False
        return standing.state == "unknown" or standing.is_recorded

    def take(self) -> dict[str, Any] | None:
        """The status, if it differs from what was told; mere numbers not more than once a second, nor for a trifle."""
        is_same_phase = self._status["phase"] == self._told.get("phase")
        if is_same_phase and (time.monotonic() < self._told_at + NUMBERS_SECONDS or self._is_as_told()):
            return None
        self._told, self._told_at = self._status, time.monotonic()
        return self._status

    def _is_as_told(self) -> bool:
        """Whether nothing changed but the count of tokens, and their rate by little."""
        rates = []
        rest = []
        for status in (self._status, self._told):
            rates.append(status.get("tokens_per_second", 0.0))
            rest.append({name: value for name, value in status.items() if name not in ("tokens", "tokens_per_second")})
        return rest[0] == rest[1] and abs(rates[0] - rates[1]) <= RATE_CHANGE * rates[1]

    async def _status_of(self, standing: Standing) -> dict[str, Any]:
        match standing.state:
            case "waiting":
                return await self._waiting(standing)
            case "lapsed":
                return {"phase": "recovering"}
            case "unknown":
                return {"phase": "recovering" if self._has_begun else "waiting"}
            case "leased" if self._status["phase"] in WAITING:
                self._worker = standing.worker or self._worker
                return self._running("reading")
        return self._status

    async def _waiting(self, standing: Standing) -> dict[str, Any]:
        status: dict[str, Any] = {"phase": "waiting", "position": standing.position, "of": standing.num_waiting}
        if standing.eta_seconds is not None:
            status["eta_seconds"] = round(standing.eta_seconds)
        states = await self._fleet.states(self._model)
        if "ready" not in states:
            status["phase"] = "loading" if "loading" in states else "no_worker"
        elif standing.num_lost:
            status["phase"] = "recovering"
        return status

    def _running(self, phase: str, **numbers: int) -> dict[str, Any]:
        return {"phase": phase, **({"worker": self._worker} if self._worker else {}), **numbers}

    def _measure(self) -> None:
        """Tokens per second of what came live; the first count is only where it begins."""
        now = time.monotonic()
        self._counts.append((now, self._num_tokens))
        while self._counts[0][0] < now - RATE_SECONDS:
            self._counts.popleft()
        since, before = self._counts[0]
        if now - since >= MIN_RATE_SECONDS:
            self._status["tokens_per_second"] = round((self._num_tokens - before) / (now - since), 1)
