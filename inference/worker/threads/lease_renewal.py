"""Keeps the leases of all attempts of this process, in one pipeline per turn.

Owns the rhythm: every third of the lease, but at least every second, since the stop flag comes back with it. Runs as
its own thread, so that a long prefill or a slow publisher cannot let a lease lapse. `worker.runtime` starts it.
"""

from __future__ import annotations

import time

import structlog
from redis.exceptions import RedisError

from inference.config import InferenceConfig
from inference.coordination.lease import Leases
from inference.worker.attempt.attempts import Attempt, Attempts, Notice
from inference.worker.threads.periodic import TickingThread

log = structlog.get_logger(__name__)


class Renewal(TickingThread):
    name = "renewal"

    def __init__(self, leases: Leases, attempts: Attempts, config: InferenceConfig) -> None:
        super().__init__(min(config.lease_seconds / 3, 1.0))
        self._leases = leases
        self._attempts = attempts
        self._lease_seconds = config.lease_seconds

    def tick(self) -> None:
        attempts = self._attempts.all()
        if not attempts:
            return
        asked_at = time.monotonic()
        try:
            renewals = self._leases.renew([(attempt.generation_id, attempt.ticket) for attempt in attempts])
        except RedisError:
            self._give_up_lapsed(attempts)
            raise
        for attempt, renewal in zip(attempts, renewals, strict=True):
            if not renewal.held:
                attempt.tell(Notice.LOST)
                continue
            attempt.renewed_at = asked_at
            if renewal.stop:
                attempt.tell(Notice.STOP)

    def _give_up_lapsed(self, attempts: list[Attempt]) -> None:
        """Without Redis for a whole lease, the lease is gone: what the engine still writes nobody would take."""
        now = time.monotonic()
        for attempt in attempts:
            if now - attempt.renewed_at > self._lease_seconds:
                attempt.tell(Notice.LOST)
