"""Connections to Redis and the scripts that run inside it.

Knows how to connect with bounded waits, how to run a script by name through EVALSHA, and how to load it again after a
Redis restart forgot it. Knows no operation; waiting_room, lease, event_log and client build on it. Any thread.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import resources
from typing import Any

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.exceptions import NoScriptError
from redis.retry import Retry

from inference.config import InferenceConfig
from inference.coordination import redis_keys
from inference.errors import StoreUnavailable

CONNECT_SECONDS = 2.0
ANSWER_SECONDS = 3.0  # a Redis that takes longer counts as unreachable
HEALTH_CHECK_SECONDS = 10
READ_ATTEMPTS = 3
UNAVAILABLE = (
    redis.ConnectionError,
    redis.TimeoutError,
    redis.exceptions.OutOfMemoryError,
    redis.exceptions.ReadOnlyError,
)

Argument = str | bytes | int


def connect(config: InferenceConfig) -> redis.Redis:
    """A client with its own pool, for any thread. No retries: a write whose answer was lost may have happened."""
    return redis.Redis.from_url(config.redis_url, retry=Retry(NoBackoff(), 0), **_limits())


def connect_for_reading(config: InferenceConfig) -> redis.Redis:
    """As `connect`, but asks again a few times within a second when the connection broke. For reads alone."""
    backoff = ExponentialBackoff(cap=0.3, base=0.05)
    # Not after a timeout: a Redis that hangs has cost the reader enough, and connecting anew multiplies the tries.
    retry = Retry(backoff, READ_ATTEMPTS - 1, supported_errors=(redis.ConnectionError,))
    return redis.Redis.from_url(config.redis_url, retry=retry, **_limits())


def connect_async(config: InferenceConfig) -> redis.asyncio.Redis:
    """As `connect`, for one event loop."""
    return redis.asyncio.Redis.from_url(config.redis_url, retry=AsyncRetry(NoBackoff(), 0), **_limits())


def connect_async_for_reading(config: InferenceConfig) -> redis.asyncio.Redis:
    """As `connect_for_reading`, for one event loop."""
    backoff = ExponentialBackoff(cap=0.3, base=0.05)
    retry = AsyncRetry(backoff, READ_ATTEMPTS - 1, supported_errors=(redis.ConnectionError,))
    return redis.asyncio.Redis.from_url(config.redis_url, retry=retry, **_limits())


def _limits() -> dict[str, Any]:
    return {
        "socket_connect_timeout": CONNECT_SECONDS,
        "socket_timeout": ANSWER_SECONDS,
        "socket_keepalive": True,
        "health_check_interval": HEALTH_CHECK_SECONDS,
    }


@contextmanager
def reaching() -> Iterator[None]:
    """Turn "Redis cannot be reached, is loading, full or read-only" into StoreUnavailable; leave other errors alone."""
    try:
        yield
    except UNAVAILABLE as error:  # BusyLoadingError is a ConnectionError
        raise StoreUnavailable(f"Redis cannot be used now: {error}") from error


def active_ttl_ms(config: InferenceConfig) -> int:
    """How long Redis keeps a generation that nobody touches. The sweeper touches every active one each few seconds."""
    return int(max(86_400.0, 2 * config.generation_seconds, 10 * config.lease_seconds) * 1000)


@cache
def _text(name: str) -> str:
    folder = resources.files("inference") / "lua"
    return f"{(folder / 'prelude.lua').read_text('utf-8')}\n{(folder / f'{name}.lua').read_text('utf-8')}"


@cache
def _digest(name: str) -> str:
    return hashlib.sha1(_text(name).encode(), usedforsecurity=False).hexdigest()


class Scripts:
    """Runs `lua/<name>.lua`. The first argument of every script is a time to live in ms."""

    def __init__(self, client: redis.Redis) -> None:
        self._redis: Any = client

    def run(self, name: str, *args: Argument) -> Any:
        try:
            return self._redis.evalsha(_digest(name), 1, redis_keys.PREFIX, *args)
        except NoScriptError:
            return self._redis.eval(_text(name), 1, redis_keys.PREFIX, *args)  # loads it as well

    def run_all(self, name: str, calls: Sequence[Sequence[Argument]]) -> list[Any]:
        """Run it once for each of `calls`, in order, in one round trip; an error reply stands in its call's place.

        One MULTI: an unknown script fails all calls alike, so that running them again keeps their order.
        """
        results = self._pipeline(name, calls)
        if any(isinstance(result, NoScriptError) for result in results):
            self._redis.script_load(_text(name))
            results = self._pipeline(name, calls)
        return results

    def _pipeline(self, name: str, calls: Sequence[Sequence[Argument]]) -> list[Any]:
        with self._redis.pipeline(transaction=True) as pipeline:
            for args in calls:
                pipeline.evalsha(_digest(name), 1, redis_keys.PREFIX, *args)
            results: list[Any] = pipeline.execute(raise_on_error=False)
        return results


class AsyncScripts:
    """As Scripts, for one event loop."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._redis: Any = client

    async def run(self, name: str, *args: Argument) -> Any:
        try:
            return await self._redis.evalsha(_digest(name), 1, redis_keys.PREFIX, *args)
        except NoScriptError:
            return await self._redis.eval(_text(name), 1, redis_keys.PREFIX, *args)
