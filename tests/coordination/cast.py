"""Who takes part in the life of one generation, as `Story` tells it: what each of them remembers."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

import redis as redis_py
from celery import Celery

from inference import celery
from inference.client import InferenceClient
from inference.coordination.event_log import EventLog
from inference.coordination.lease import Leases
from inference.coordination.waiting_room import Claim, WaitingRoom
from inference.messages.generation import Event
from tests.coordination.conftest import make_request

NUM_TOKENS = 4  # of a complete answer


@dataclass
class Row:
    """What Postgres holds of the generation."""

    status: str = "active"
    stop: bool = False
    text: tuple[str, ...] = ()
    num_commits: int = 0

    def end(self, status: str, text: tuple[str, ...] = ()) -> None:
        if self.status == "active":
            self.status, self.text, self.num_commits = status, text, self.num_commits + 1


@dataclass
class Worker:
    phase: str = (
        "idle"  # idle | claimed | running | given up (not re-entered) | ended (finish written, record not sent)
    )
    claim: Claim = field(default_factory=lambda: Claim(make_request(), "", "", 0))
    seq: int = 0
    sees_stop: bool = False

    @property
    def is_over(self) -> bool:
        return self.seq >= NUM_TOKENS or self.sees_stop


@dataclass
class Viewer:
    mark: str = ""
    last: int = 0
    shown: tuple[str, ...] = ()
    has_seen_end: bool = False


@dataclass
class Budget:
    kills: int = 0
    lapses: int = 0
    wipes: int = 0
    drains: int = 0
    web_deaths: int = 0
    late_submits: int = 0
    losses: int = 0
    stops: int = 0


@dataclass
class Services:
    redis: redis_py.Redis
    client: InferenceClient
    room: WaitingRoom
    leases: Leases
    log: EventLog
    site: Celery

    def send_record(self, generation_id: UUID) -> None:
        celery.send_record(generation_id, app=self.site)


def tokens_of(events: tuple[Event, ...]) -> tuple[str, ...]:
    return tuple(d.text for event in events for d in event.deltas)
