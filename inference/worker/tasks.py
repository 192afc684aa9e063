"""The doorbell task: someone waits for this model; answer until nobody does.

Owns the claim loop. A doorbell names no generation: the waiting room says who is next, so lost and repeated bells do
no harm. Runs in Celery's task threads.
"""

from __future__ import annotations

import structlog
from redis.exceptions import RedisError

from inference.celery import GENERATE_TASK, app
from inference.coordination.waiting_room import Claim, Later
from inference.worker.attempt.generation import Generation
from inference.worker.process import lifecycle
from inference.worker.process.runtime import Runtime

log = structlog.get_logger(__name__)

MAX_LATER_SECONDS = 1.0


@app.task(name=GENERATE_TASK)  # type: ignore[untyped-decorator]
def generate(model: str) -> None:
    answer_waiting(lifecycle.runtime(), model)


def answer_waiting(runtime: Runtime, model: str) -> None:
    """Claim and answer until the room is empty, every slot is taken, or the worker drains.

    Whoever holds a slot claims again when done, so a bell that finds none free may be dropped. Without Redis the
    sweeper rings again.
    """
    if model != runtime.bench.model.name:
        log.error("wrong_doorbell", model=model, served=runtime.bench.model.name)
        return
    try:
        while _answer_one(runtime, model):
            pass
    except RedisError as error:
        log.warning("claim_failed", error=type(error).__name__)


def _answer_one(runtime: Runtime, model: str) -> bool:
    """Whether to look again."""
    with runtime.seat() as has_seat:
        if not has_seat:
            return False
        found = runtime.bench.room.claim(model, runtime.config.worker_name)
        if isinstance(found, Claim):
            attempt = runtime.attempts.begin(found)
            try:
                Generation(runtime.bench, attempt).run()
            finally:
                runtime.attempts.end(attempt)
            return True
    if isinstance(found, Later):
        runtime.draining.wait(min(found.wait_ms / 1000, MAX_LATER_SECONDS))
        return True
    return False
