"""A daemon thread that does one thing again and again until told to stop.

Heartbeat, renewal and watchdog are such threads. A failure of one turn is logged and the next turn is tried: these
threads must outlive any outage of Redis.
"""

from __future__ import annotations

import threading

import structlog
from redis.exceptions import RedisError

log = structlog.get_logger(__name__)


class TickingThread:
    """Calls `tick` every `interval_seconds`, the first time at once."""

    name = "ticking"

    def __init__(self, interval_seconds: float) -> None:
        self._interval_seconds = interval_seconds
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def tick(self) -> None:
        raise NotImplementedError

    def _run(self) -> None:
        failing = False
        while True:
            try:
                self.tick()
                if failing:
                    log.info("thread_recovered", thread=self.name)
                failing = False
            except RedisError as error:
                if not failing:  # once per outage, not once per turn
                    log.warning("redis_unreachable", thread=self.name, error=type(error).__name__)
                failing = True
            except Exception:  # edge of a thread that must go on: leases and heartbeat hang on it
                log.exception("thread_turn_failed", thread=self.name)
            if self._stopping.wait(self._interval_seconds):
                return
