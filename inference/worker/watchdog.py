"""Ends the process when its engine hangs or has died, so that a supervisor starts a fresh one.

A forward call that never comes back cannot be interrupted, and memory of a broken device comes back only with the
process. The generations on board are not lost: their leases lapse and other workers go on. `worker.runtime` starts it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import structlog

from inference.engine.stats import EngineStats
from inference.worker.ticking import TickingThread

log = structlog.get_logger(__name__)

HUNG_EXIT_CODE = 70  # EX_SOFTWARE
LOOK_SECONDS = 1.0


class Watchdog(TickingThread):
    """`end_process` is os._exit but in tests."""

    name = "watchdog"

    def __init__(
        self,
        stats: Callable[[], EngineStats],
        hang_seconds: float,
        *,
        end_process: Callable[[int], object] = os._exit,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        super().__init__(look_seconds)
        self._stats = stats
        self._hang_seconds = hang_seconds
        self._end_process = end_process

    def tick(self) -> None:
        stats = self._stats()
        if not stats.is_alive:
            log.critical("engine_died", error=stats.error.message if stats.error else None)
        elif stats.seconds_since_step > self._hang_seconds:
            log.critical("engine_hangs", seconds=round(stats.seconds_since_step, 1), limit_seconds=self._hang_seconds)
        else:
            return
        sys.stdout.flush()
        sys.stderr.flush()
        self._end_process(HUNG_EXIT_CODE)
