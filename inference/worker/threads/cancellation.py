"""Hears of stops at once, instead of with the next renewal.

Owns one subscription to the channel of stop nudges. A nudge lost while Redis is away costs nothing: the durable flag
comes back with every append and renewal. Deadlines need no thread: each attempt waits for its next token only as long
as it may still run (`attempt.generation`). `worker.runtime` starts it.
"""

from __future__ import annotations

import threading
from typing import Any
from uuid import UUID

import structlog
from redis import Redis
from redis.exceptions import RedisError

from inference.coordination import redis_keys
from inference.worker.attempt.attempts import Attempts, Notice

log = structlog.get_logger(__name__)

RECONNECT_SECONDS = 1.0
LISTEN_SECONDS = 0.5  # how soon `stop` is noticed


class Cancellation:
    def __init__(self, redis: Redis, attempts: Attempts) -> None:
        self._pubsub: Any = redis.pubsub  # redis-py leaves it untyped
        self._attempts = attempts
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cancellation", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._listen()
            except RedisError as error:
                log.warning("stops_unheard", error=type(error).__name__)
            except Exception:  # edge of a thread that must go on
                log.exception("stops_unheard")
            self._stopping.wait(RECONNECT_SECONDS)

    def _listen(self) -> None:
        with self._pubsub(ignore_subscribe_messages=True) as pubsub:
            pubsub.subscribe(redis_keys.STOPS)
            while not self._stopping.is_set():
                message = pubsub.get_message(timeout=LISTEN_SECONDS)
                if message is not None:
                    self._hear(message["data"])

    def _hear(self, payload: bytes) -> None:
        try:
            generation_id = UUID(payload.decode())
        except ValueError:
            log.warning("stop_nudge_unreadable", num_bytes=len(payload))
            return
        self._attempts.tell(generation_id, Notice.STOP)
