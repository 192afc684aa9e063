"""Whether this site can answer now, asked afresh each time and bounded in time.

Live: this process serves. Ready: Postgres, Redis and the site worker answer and a GPU worker serves a model, so that a
message sent now would be answered. Each question runs in a thread of its own; one that hangs is not asked again before
it came back, and counts as failed meanwhile. Called by probes, metrics and the ops page.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import psycopg
import redis
import structlog
from django.conf import settings

from chatsite.ops import database, heartbeat
from inference.client import InferenceClient
from inference.coordination import redis_keys
from inference.errors import InferenceError, StoreUnavailable
from inference.messages.cards import WorkerCard

log = structlog.get_logger(__name__)

DEADLINE_SECONDS = 1.5  # for all questions together; the promise is an answer within 2 s
STUCK_SECONDS = 30.0  # an engine that has work and finished no step for so long answers nobody

T = TypeVar("T")


@dataclass(frozen=True)
class Check:
    """`detail` says what is wrong; empty when `ok`."""

    ok: bool
    detail: str = ""


@dataclass(frozen=True)
class Health:
    postgres: Check
    redis: Check
    site_worker: Check
    workers: tuple[WorkerCard, ...] = ()
    num_waiting: dict[str, int] = field(default_factory=dict)  # by model that somebody serves
    took_seconds: float = 0.0
    usable: tuple[WorkerCard, ...] = field(init=False)

    def __post_init__(self) -> None:
        usable = (w for w in self.workers if w.state == "ready" and w.engine_idle_seconds < STUCK_SECONDS)
        object.__setattr__(self, "usable", tuple(usable))

    @property
    def is_ready(self) -> bool:
        return self.postgres.ok and self.redis.ok and self.site_worker.ok and bool(self.usable)

    @property
    def reasons(self) -> list[str]:
        """Why it is not ready, one sentence each."""
        found = [check.detail for check in (self.postgres, self.redis, self.site_worker) if not check.ok]
        if self.redis.ok and not self.usable:
            loading = [w.model.name for w in self.workers if w.state == "loading"]
            if loading:
                found.append(f"A worker is loading {loading[0]}.")
            elif self.workers:
                found.append("No worker takes new work: all are draining or stuck.")
            else:
                found.append("No worker serves a model.")
        return found

    @property
    def degradations(self) -> list[str]:
        """What workers say that they lack, each once."""
        return list(dict.fromkeys(f"{w.name}: {sentence}" for w in self.workers for sentence in w.degradations))

    @property
    def notes(self) -> list[str]:
        """What else workers say of themselves, each once."""
        return list(dict.fromkeys(f"{w.name}: {note}" for w in self.workers for note in w.notes))

    def as_public_json(self) -> dict[str, Any]:
        """For strangers: what is not ready, by kind alone."""
        kinds = (
            (self.postgres.ok, "The database is not ready."),
            (self.redis.ok, "Redis is not ready."),
            (self.site_worker.ok, "The site worker is not ready."),
            (bool(self.usable) or not self.redis.ok, "No GPU worker is ready."),
        )
        return {"ready": self.is_ready, "reasons": [reason for is_ok, reason in kinds if not is_ok]}

    def as_json(self) -> dict[str, Any]:
        models = {w.model.name: w.model for w in self.usable}
        return {
            "ready": self.is_ready,
            "reasons": self.reasons,
            "degraded": self.degradations,
            "checks": {
                **{
                    name: {"ok": check.ok, "detail": check.detail}
                    for name, check in (
                        ("postgres", self.postgres),
                        ("redis", self.redis),
                        ("site_worker", self.site_worker),
                    )
                },
                "models": [
                    {
                        "name": m.name,
                        "title": m.title,
                        "context_tokens": m.context_tokens,
                        "workers": sum(w.model.name == m.name for w in self.usable),
                    }
                    for m in models.values()
                ],
                "workers": [
                    {
                        "name": w.name,
                        "model": w.model.name,
                        "state": w.state,
                        "next_model": w.next_model,
                        "device": w.device,
                        "slots": w.num_slots,
                        "free_slots": w.num_free_slots,
                        "notes": list(w.notes),
                        "degradations": list(w.degradations),
                    }
                    for w in self.workers
                ],
            },
        }


class Question(Generic[T]):
    """Asked in a thread of its own, by many callers at once if need be, but never twice at the same time."""

    def __init__(self, name: str, ask: Callable[[], T]) -> None:
        self._name = name
        self._ask = ask
        self._lock = threading.Lock()
        self._pending: Future[T] | None = None

    def put(self) -> Future[T]:
        with self._lock:
            if self._pending is None or self._pending.done():
                self._pending = Future()
                threading.Thread(target=self._run, args=(self._pending,), name=f"ask-{self._name}", daemon=True).start()
            return self._pending

    def _run(self, pending: Future[T]) -> None:
        try:
            pending.set_result(self._ask())
        except BaseException as error:  # noqa: BLE001  the asker decides what it means
            pending.set_exception(error)


@functools.cache
def client() -> InferenceClient:
    return InferenceClient(settings.INFERENCE)


def _ask_postgres() -> bool:
    [[(is_migrated,)]] = database.ask(("SELECT to_regclass('chat_generation') IS NOT NULL", ()))
    return bool(is_migrated)


def _ask_fleet() -> tuple[tuple[WorkerCard, ...], dict[str, int]]:
    """Live workers by name, and how many wait for each model they serve."""
    workers = tuple(sorted(client().workers(), key=lambda w: w.name))
    models = sorted({w.model.name for w in workers})
    return workers, {model: int(client().redis.zcard(redis_keys.order(model))) for model in models}


_postgres = Question("postgres", _ask_postgres)
_fleet = Question("fleet", _ask_fleet)
_site_worker = Question("site-worker", heartbeat.is_alive)


def look() -> Health:
    """Ask everything at once; takes at most `DEADLINE_SECONDS`."""
    started = time.monotonic()
    asked = (_postgres.put(), _fleet.put(), _site_worker.put())

    def left() -> float:
        return max(0.0, started + DEADLINE_SECONDS - time.monotonic())

    postgres = _postgres_check(asked[0], left())
    workers: tuple[WorkerCard, ...] = ()
    num_waiting: dict[str, int] = {}
    try:
        workers, num_waiting = asked[1].result(left())
        redis_check = Check(True)
    except TimeoutError:
        redis_check = Check(False, "Redis does not answer in time.")
    except (StoreUnavailable, redis.RedisError):
        redis_check = Check(False, "Redis cannot be reached.")
    except InferenceError as error:
        redis_check = Check(False, f"Redis holds what cannot be read: {error.message}")
    try:
        alive = asked[2].result(left())
        site_worker = Check(alive, "" if alive else "The site worker gives no sign of life; answers are not recorded.")
    except (TimeoutError, redis.RedisError):
        site_worker = Check(False, "Whether the site worker lives is not known without Redis.")
    return Health(
        postgres=postgres,
        redis=redis_check,
        site_worker=site_worker,
        workers=workers,
        num_waiting=num_waiting,
        took_seconds=time.monotonic() - started,
    )


def _postgres_check(asked: Future[bool], seconds: float) -> Check:
    try:
        is_migrated = asked.result(seconds)
    except TimeoutError:
        return Check(False, "Postgres does not answer in time.")
    except psycopg.Error as error:
        log.warning("postgres cannot be asked", reason=str(error).strip())
        return Check(False, "Postgres cannot be reached.")
    return Check(is_migrated, "" if is_migrated else "The database is not migrated; run `manage.py prepare`.")
