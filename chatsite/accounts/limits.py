"""How much one user may ask for: requests per minute, and answers being written at once.

The rate is counted in Redis for all processes together. While Redis is away each process counts for itself, to a small
cap: the site goes on, and nobody can flood it meanwhile. The number of active answers comes from Postgres, so that it
holds whatever happens to Redis. Knows nothing of conversations; the chat and the API call it, from any thread.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from uuid import UUID

import redis
import structlog

from chatsite.accounts.models import User
from inference.errors import StoreUnavailable

log = structlog.get_logger(__name__)

WINDOW_SECONDS = 60
AWAY_SECONDS = 2.0  # after a failure Redis is left alone this long: an outage must not cost each request a timeout
AWAY_SHARE = 4  # without Redis a process grants one in so many of the usual requests, but at least one


class RateExceeded(Exception):
    """The user asked too often; `retry_after_seconds` says when a request may pass again."""

    def __init__(self, max_per_minute: int, retry_after_seconds: int) -> None:
        super().__init__(f"At most {max_per_minute} requests a minute; try again in {retry_after_seconds} seconds.")
        self.max_per_minute = max_per_minute
        self.retry_after_seconds = retry_after_seconds


@dataclass
class _Window:
    number: int = 0
    num_requests: int = 0


class RequestRate:
    """Counts requests of each user in fixed windows of a minute."""

    def __init__(self, connection: redis.Redis, *, prefix: str = "{smolfleet}:rate:") -> None:
        self._redis = connection
        self._prefix = prefix
        self._lock = threading.Lock()
        self._own: dict[UUID, _Window] = {}
        self._away_until = float("-inf")

    def take(self, user_id: UUID, max_per_minute: int) -> None:
        """Count one request of this user. `max_per_minute` 0 means no limit.

        Raises:
            RateExceeded: this minute's requests are used up.
        """
        if max_per_minute <= 0:
            return
        now = time.time()
        window = int(now // WINDOW_SECONDS)
        try:
            num_requests = self._count(f"{self._prefix}{user_id}:{window}")
        except (redis.ConnectionError, redis.TimeoutError, StoreUnavailable):
            max_per_minute = max(1, max_per_minute // AWAY_SHARE)
            num_requests = self._count_here(user_id, window)
        if num_requests > max_per_minute:
            raise RateExceeded(max_per_minute, max(1, int((window + 1) * WINDOW_SECONDS - now)))

    def _count(self, key: str) -> int:
        if time.monotonic() < self._away_until:
            raise StoreUnavailable("Redis could not be reached a moment ago.")
        try:
            with self._redis.pipeline(transaction=True) as pipe:
                pipe.incr(key)
                pipe.expire(key, 2 * WINDOW_SECONDS)
                return int(pipe.execute()[0])
        except redis.ResponseError:  # what lies there is no number of ours: this request is the first
            self._redis.set(key, 1, ex=2 * WINDOW_SECONDS)
            return 1
        except redis.RedisError:
            self._away_until = time.monotonic() + AWAY_SECONDS
            raise

    def _count_here(self, user_id: UUID, window: int) -> int:
        with self._lock:
            if any(own.number != window for own in self._own.values()):
                self._own = {user: own for user, own in self._own.items() if own.number == window}
                log.warning("request rate counted without redis")
            own = self._own.setdefault(user_id, _Window(window))
            own.num_requests += 1
            return own.num_requests


def num_active(user: User) -> int:
    """Answers in this user's chats, temporary ones too, that have not ended. The API counts its own."""
    return user.generations.filter(status="active", source__in=("chat", "temporary")).count()
