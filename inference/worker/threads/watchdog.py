"""Ends the process when its engine hangs, has died or keeps failing, so that a supervisor starts a fresh one.

A forward call that never comes back cannot be interrupted, and memory of a broken device comes back only with the
process. The generations on board are not lost: they are let go of first, and other workers go on at once; where even
that cannot be said, their leases lapse. `worker.runtime` starts it.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable

import structlog

from inference.engine.stats import EngineStats
from inference.worker.attempt.attempts import Notice
from inference.worker.threads.periodic import TickingThread

log = structlog.get_logger(__name__)

HUNG_EXIT_CODE = 70  # EX_SOFTWARE
LOOK_SECONDS = 1.0
MAX_FAULTS = 8  # bad rows and failed forwards within FAULT_SECONDS that mean an ill device ...
FAULT_SECONDS = 60.0
TOKENS_PER_FAULT = 100  # ... unless so many tokens each came out well: then a few bad prompts are to blame


class Watchdog(TickingThread):
    """`let_go` has all attempts told to go on elsewhere and returns in bounded time. `end_process` is os._exit but in
    tests."""

    name = "watchdog"

    def __init__(
        self,
        stats: Callable[[], EngineStats],
        let_go: Callable[[Notice], object],
        hang_seconds: float,
        *,
        end_process: Callable[[int], object] = os._exit,
        look_seconds: float = LOOK_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(look_seconds)
        self._stats = stats
        self._let_go = let_go
        self._hang_seconds = hang_seconds
        self._end_process = end_process
        self._clock = clock
        self._seen: deque[tuple[float, int, int]] = deque()  # when; faults and good tokens until then

    def tick(self) -> None:
        stats = self._stats()
        if not stats.is_alive:
            log.critical("engine_died", error=stats.error.message if stats.error else None)
            self._end(Notice.GIVE_UP)
        elif stats.seconds_since_step > self._hang_seconds:
            log.critical("engine_hangs", seconds=round(stats.seconds_since_step, 1), limit_seconds=self._hang_seconds)
            self._end(Notice.GIVE_UP)
        elif self._is_ill(stats):
            log.critical("engine_ill", num_bad_rows=stats.num_bad_rows, num_failed_forwards=stats.num_failed_forwards)
            self._end(Notice.HAND_ON)  # whoever is on board need not be to blame

    def _is_ill(self, stats: EngineStats) -> bool:
        now, faults = self._clock(), stats.num_bad_rows + stats.num_failed_forwards
        self._seen.append((now, faults, stats.num_decoded_tokens))
        while now - self._seen[0][0] > FAULT_SECONDS:
            self._seen.popleft()
        _, faults_before, tokens_before = self._seen[0]
        num_faults = faults - faults_before
        return num_faults >= MAX_FAULTS and stats.num_decoded_tokens - tokens_before < TOKENS_PER_FAULT * num_faults

    def _end(self, notice: Notice) -> None:
        try:
            self._let_go(notice)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            self._end_process(HUNG_EXIT_CODE)
