"""Django's cache: in Redis for all processes together; while Redis is away, in this process's memory.

allauth counts attempts to sign in here. Losing Redis must neither lock everybody out nor lift the limits, so each
process then counts for itself, and says so in the log once per outage. Called from any thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import redis
import structlog
from django.core.cache.backends.locmem import LocMemCache
from django.core.cache.backends.redis import RedisCache

log = structlog.get_logger(__name__)

AWAY_SECONDS = 2.0  # after a failure Redis is left alone this long, so that an outage costs a request little

UNREACHABLE = (redis.ConnectionError, redis.TimeoutError, redis.exceptions.BusyLoadingError)


class RedisOrOwnMemory(RedisCache):
    def __init__(self, server: str, params: dict[str, Any]) -> None:
        super().__init__(server, params)
        own = {name: value for name, value in params.items() if name.upper() != "OPTIONS"}
        self._own = LocMemCache(f"while redis is away: {server}", own)
        self._away_until = 0.0

    def _first(self, name: str, *arguments: Any, **options: Any) -> Any:
        if time.monotonic() >= self._away_until:
            there: Callable[..., Any] = getattr(super(), name)
            try:
                value = there(*arguments, **options)
            except UNREACHABLE as error:
                if not self._away_until:
                    log.warning("cache kept in own memory", reason=type(error).__name__)
                self._away_until = time.monotonic() + AWAY_SECONDS
            else:
                if self._away_until:
                    log.info("cache kept in redis again")
                    self._away_until = 0.0
                    self._own.clear()
                return value
        return getattr(self._own, name)(*arguments, **options)

    def add(self, *arguments: Any, **options: Any) -> Any:
        return self._first("add", *arguments, **options)

    def get(self, *arguments: Any, **options: Any) -> Any:
        return self._first("get", *arguments, **options)

    def set(self, *arguments: Any, **options: Any) -> Any:
        return self._first("set", *arguments, **options)

    def touch(self, *arguments: Any, **options: Any) -> Any:
        return self._first("touch", *arguments, **options)

    def delete(self, *arguments: Any, **options: Any) -> Any:
        return self._first("delete", *arguments, **options)

    def get_many(self, *arguments: Any, **options: Any) -> Any:
        return self._first("get_many", *arguments, **options)

    def has_key(self, *arguments: Any, **options: Any) -> Any:
        return self._first("has_key", *arguments, **options)

    def incr(self, *arguments: Any, **options: Any) -> Any:
        return self._first("incr", *arguments, **options)

    def set_many(self, *arguments: Any, **options: Any) -> Any:
        return self._first("set_many", *arguments, **options)

    def clear(self) -> None:
        self._own.clear()
        self._first("clear")

    def delete_many(self, *arguments: Any, **options: Any) -> Any:
        return self._first("delete_many", *arguments, **options)
