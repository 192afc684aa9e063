"""The site worker's sign of life: a key in Redis that its own queue keeps alive.

A task of beat sets it, so that it proves all of it at once: beat rings, the queue moves, a thread is free.
"""

from __future__ import annotations

import functools

import redis
from django.conf import settings
from redis.backoff import NoBackoff
from redis.retry import Retry

KEY = "{smolfleet}:site_worker"
EVERY_SECONDS = 2.0
TTL_SECONDS = 10


@functools.cache
def connection() -> redis.Redis:
    return redis.Redis.from_url(
        settings.REDIS_URL, socket_timeout=1.0, socket_connect_timeout=1.0, retry=Retry(NoBackoff(), 0)
    )


def beat() -> None:
    connection().set(KEY, b"1", ex=TTL_SECONDS)


def is_alive() -> bool:
    """Raises redis.ConnectionError or redis.TimeoutError while Redis is away."""
    return bool(connection().exists(KEY))
