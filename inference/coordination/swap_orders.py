"""Orders to workers, and what becomes of them: one at a time per worker, gone by themselves when nobody keeps them.

An operator's command gives an order and reads the reports; the worker takes it, keeps it alive while it is at work and
takes it away when it has ended. An order that has a report already was taken: whoever finds one it did not take itself
is the successor of a worker that died. Redis's own errors pass through. Any thread.
"""

from __future__ import annotations

import contextlib
from typing import Any
from uuid import UUID

import redis
from redis.exceptions import WatchError

from inference.coordination import redis_keys
from inference.messages.serialization import decode, encode
from inference.messages.swap import SwapOrder, SwapReport

ORDER_TTL_MS = 60_000  # since the worker was last seen to be at it; more than a start takes
REPORT_TTL_SECONDS = 3_600


class Orders:
    def __init__(self, client: redis.Redis) -> None:
        self._redis: Any = client

    def give(self, worker: str, order: SwapOrder) -> bool:
        """False: the worker has an order that has not ended."""
        return bool(self._redis.set(redis_keys.swap(worker), encode(order), px=ORDER_TTL_MS, nx=True))

    def current(self, worker: str) -> SwapOrder | None:
        """Raises InvalidRequest: what lies there was written by another version."""
        data = self._redis.get(redis_keys.swap(worker))
        return None if data is None else decode(data, SwapOrder)

    def keep(self, worker: str) -> None:
        """Say that its order is still worked on."""
        self._redis.pexpire(redis_keys.swap(worker), ORDER_TTL_MS)

    def take_away(self, worker: str, order_id: UUID) -> None:
        """That order has ended; another one that came meanwhile stays."""
        key = redis_keys.swap(worker)
        with self._redis.pipeline() as pipeline, contextlib.suppress(WatchError):  # changed just now: not that order
            pipeline.watch(key)
            data = pipeline.get(key)
            if data is not None and decode(data, SwapOrder).id == order_id:
                pipeline.multi()
                pipeline.delete(key)
                pipeline.execute()

    def report(self, report: SwapReport) -> None:
        self._redis.set(redis_keys.swap_report(report.order), encode(report), ex=REPORT_TTL_SECONDS)

    def report_of(self, order_id: UUID) -> SwapReport | None:
        data = self._redis.get(redis_keys.swap_report(order_id))
        return None if data is None else decode(data, SwapReport)
