"""A worker at work: its engine, its threads, its attempts. Everything but Celery and the loading of the model.

Owns the start and stop of the threads, the seats (one per engine slot) and the drain. `worker.lifecycle` makes one
when the model is loaded, `worker.tasks` answers with it; tests make one around a scripted backend.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import UUID

import structlog
from redis import Redis

from inference import metrics
from inference.config import InferenceConfig
from inference.coordination.event_log import EventLog
from inference.coordination.lease import Leases
from inference.coordination.waiting_room import WaitingRoom
from inference.engine.engine import Engine
from inference.worker.attempt.attempts import Attempts, Notice
from inference.worker.attempt.context import Served, Workbench
from inference.worker.attempt.publisher import Publisher
from inference.worker.threads.cancellation import Cancellation
from inference.worker.threads.lease_renewal import Renewal
from inference.worker.threads.watchdog import Watchdog

log = structlog.get_logger(__name__)

HAND_ON_SECONDS = 10.0  # for all attempts to release what they work on
LAST_WORDS_SECONDS = 2.0  # the same when the process ends because something is broken
LOOK_SECONDS = 0.2  # how soon a second stop signal is noticed


class Runtime:
    """`redis` must not retry by itself. The engine belongs to it: started and stopped here."""

    def __init__(
        self,
        config: InferenceConfig,
        redis: Redis,
        engine: Engine,
        model: Served,
        *,
        ring: Callable[[str], None],
        send_record: Callable[[UUID], None],
        end_process: Callable[[int], object] = os._exit,
    ) -> None:
        self.config = config
        self.engine = engine
        self.attempts = Attempts()
        self.num_slots = engine.stats().num_slots
        self.accepts = True  # a plain flag: a signal handler may clear it
        self.draining = threading.Event()  # ends waits; not for signal handlers, its lock may be held
        self._seats_changed = threading.Condition()
        self._num_seated = 0
        self._publisher = Publisher(EventLog(redis, config), config)
        leases = Leases(redis, config)
        self._renewal = Renewal(leases, self.attempts, config)
        self._cancellation = Cancellation(redis, self.attempts)
        self._watchdog = Watchdog(engine.stats, self.let_go, config.hang_seconds, end_process=end_process)
        self.bench = Workbench(
            config=config,
            model=model,
            engine=engine,
            event_log=EventLog(redis, config),
            room=WaitingRoom(redis, config),
            leases=leases,
            publisher=self._publisher,
            ring=ring,
            send_record=send_record,
        )

    def start(self) -> None:
        self.engine.start()
        self._publisher.start()
        self._renewal.start()
        self._cancellation.start()
        self._watchdog.start()

    @contextmanager
    def seat(self) -> Iterator[bool]:
        """Whether the worker may claim now. While True, one engine slot is kept for whoever asked.

        Never with a dead engine: until the watchdog ends the process it would claim and hand on in circles.
        """
        is_fit = self.accepts and self.engine.stats().is_alive
        with self._seats_changed:
            has_seat = is_fit and self._num_seated < self.num_slots
            self._num_seated += has_seat
        try:
            yield has_seat
        finally:
            with self._seats_changed:
                self._num_seated -= has_seat
                self._seats_changed.notify_all()

    def observe(self) -> None:
        """Bring the gauges up to date."""
        stats, name = self.engine.stats(), self.bench.model.name
        metrics.SLOTS.labels(name).set(stats.num_slots)
        metrics.SLOTS_BUSY.labels(name).set(stats.num_slots - stats.num_free_slots)
        metrics.DECODED_TOKENS.labels(name).set(stats.num_decoded_tokens)
        metrics.PREFILLED_TOKENS.labels(name).set(stats.num_prefilled_tokens)
        metrics.CACHED_TOKENS.labels(name).set(stats.num_cached_tokens)
        metrics.HOST_RESTORED_TOKENS.labels(name).set(stats.num_host_restored_tokens)
        metrics.HOST_CACHE_BYTES.labels(name).set(stats.host_cache_bytes)
        metrics.POOL_TOKENS.labels(name).set(stats.pool_tokens)
        metrics.HELD_TOKENS.labels(name).set(stats.num_held_tokens)
        metrics.EVICTIONS.labels(name).set(stats.num_evictions)
        metrics.PREEMPTIONS.labels(name).set(stats.num_preemptions)
        metrics.BAD_ROWS.labels(name).set(stats.num_bad_rows)
        metrics.FAILED_FORWARDS.labels(name).set(stats.num_failed_forwards)
        metrics.STEP_SECONDS.labels(name).set(stats.last_step_seconds)
        metrics.HOST_SECONDS.labels(name).set(stats.host_seconds_per_step)

    def drain(self, seconds: float, *, is_hurried: Callable[[], bool] = lambda: False) -> None:
        """Claim nothing more, let answers finish for `seconds` or until hurried, then hand the rest on."""
        self.accepts = False
        self.draining.set()
        deadline = time.monotonic() + seconds
        log.info("draining", num_attempts=self._num_seated, seconds=seconds)
        while not self._wait_until_idle() and time.monotonic() < deadline and not is_hurried():
            pass
        deadline = time.monotonic() + HAND_ON_SECONDS
        self.attempts.tell_all(Notice.HAND_ON)
        while not self._wait_until_idle() and time.monotonic() < deadline:
            self.attempts.tell_all(Notice.HAND_ON)  # also whoever was still claiming
        if self._num_seated:
            log.error("attempts_left", num_attempts=self._num_seated)

    def resume(self) -> None:
        """Claim again, after a drain that is called off."""
        self.draining.clear()
        self.accepts = True

    @property
    def is_idle(self) -> bool:
        """Whether nobody claims or answers just now."""
        with self._seats_changed:
            return not self._num_seated

    def let_go(self, notice: Notice) -> None:
        """Before the process ends: claim nothing more, and have every attempt told to let go of its generation.

        Waits until each has, or two seconds: what is not told by then lapses.
        """
        self.accepts = False
        self.draining.set()
        deadline = time.monotonic() + LAST_WORDS_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            holding = [attempt for attempt in self.attempts.all() if not attempt.let_go.is_set()]
            if not holding:
                return
            for attempt in holding:
                attempt.tell(notice)
            holding[0].let_go.wait(min(left, LOOK_SECONDS))
        log.error("attempts_left", num_attempts=self._num_seated)

    def _wait_until_idle(self) -> bool:
        """Whether nobody claims or answers any more, after a short wait."""
        with self._seats_changed:
            return self._seats_changed.wait_for(lambda: not self._num_seated, LOOK_SECONDS)

    def stop(self, timeout: float = 10.0) -> None:
        """End the engine and all threads. Attempts still under way are handed on by the engine's ending."""
        self._watchdog.stop()
        if not self.engine.stop(timeout):
            log.error("engine_did_not_stop", timeout_seconds=timeout)
        self._cancellation.stop()
        self._publisher.stop()
        self._renewal.stop()
