"""How an attempt leaves a generation that has not ended: it hands it on, or gives it up.

Owns what then happens to the lease and the waiting room. Writes nothing into the log; the news of before leave first.
`attempt.generation` calls it once at the end of an attempt, in that attempt's thread. Redis being away is no error
here: the lease then lapses in its own time, and the sweeper carries on.
"""

from __future__ import annotations

from typing import Any

from redis.exceptions import RedisError

from inference import metrics
from inference.worker.attempt.attempts import Attempt
from inference.worker.attempt.context import Workbench, hint
from inference.worker.attempt.outbox import Outbox

SETTLE_SECONDS = 1.0  # news may take so long to leave before the generation is handed on without them


def hand_on(bench: Workbench, attempt: Attempt, outbox: Outbox, log: Any, *, num_tokens: int) -> None:
    """Let another worker go on: back to the front of the waiting room, with the `num_tokens` written so far."""
    bench.publisher.settle(outbox, SETTLE_SECONDS)
    try:
        released = bench.room.release(attempt.generation_id, attempt.ticket)
    except RedisError as error:  # the lease lapses instead
        log.warning("generation_not_released", error=type(error).__name__)
        return
    log.info("generation_handed_on", released=released, num_tokens=num_tokens)
    if released:
        hint(log, "ring", bench.ring, bench.model.name)


def give_up(bench: Workbench, attempt: Attempt, outbox: Outbox, log: Any, *, num_tokens: int) -> None:
    """This worker fails under the answer: let another go on at once, instead of when the lease has run out.

    It counts as a lost attempt, so an answer that itself is what breaks workers ends: the sweeper fails it when it was
    the last one.
    """
    bench.publisher.settle(outbox, SETTLE_SECONDS)
    try:
        given_up = bench.leases.give_up(attempt.generation_id, attempt.ticket)
        is_last = attempt.num_lost + 1 >= bench.config.max_attempts
        goes_on = given_up and not is_last and bench.room.reenter(attempt.generation_id)
    except RedisError as error:  # the lease lapses in its own time
        log.warning("generation_not_given_up", error=type(error).__name__)
        return
    metrics.ATTEMPTS_LOST.labels(bench.model.name).inc()
    log.warning("generation_given_up", given_up=given_up, goes_on=goes_on, num_tokens=num_tokens)
    if goes_on:
        hint(log, "ring", bench.ring, bench.model.name)
