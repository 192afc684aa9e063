"""The times of one attempt, as the metrics tell them: queue wait, time to the first text, gaps between tokens.

Owns the instants it is told of. Knows no engine, no log and no Redis. `attempt.generation` tells it, in the thread of
one generation.
"""

from __future__ import annotations

import time
from uuid import UUID

from prometheus_client import Histogram

from inference import metrics


class Stopwatch:
    """Instants are of the monotonic clock, in seconds."""

    def __init__(self, model: str, generation_id: UUID) -> None:
        self._model = model
        self._generation_id = generation_id
        self._itl = metrics.ITL_SECONDS.labels(model)
        self._first_token_at = 0.0
        self._last_token_at = 0.0

    @property
    def decode_seconds(self) -> float:
        """From the first token to the last."""
        return self._last_token_at - self._first_token_at

    def reading_began(self) -> None:
        self._observe_since_submit(metrics.QUEUE_WAIT_SECONDS)

    def token_came(self, at: float) -> None:
        if self._last_token_at:
            self._itl.observe(at - self._last_token_at)
        else:
            self._first_token_at = at
        self._last_token_at = at

    def first_text_came(self) -> None:
        self._observe_since_submit(metrics.TTFT_SECONDS)

    def _observe_since_submit(self, histogram: Histogram) -> None:
        """A generation's id is a UUIDv7 made at submit, so it tells when that was (by the web node's clock)."""
        if self._generation_id.version == 7:
            seconds = time.time() - (self._generation_id.int >> 80) / 1000
            histogram.labels(self._model).observe(max(0.0, seconds))
