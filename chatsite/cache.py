"""Django's cache: in Redis for all processes together; while Redis is away, in this process's memory.

allauth and the limits of signing in count attempts here. Losing Redis must neither lock everybody out nor lift the
limits, so each process then counts for itself, and says so in the log once per outage. What lies in Redis is JSON with
this site's signature: others may write there, and what they wrote is neither run nor believed. Called from any thread.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import redis
import structlog
from django.core.cache.backends.locmem import LocMemCache
from django.core.cache.backends.redis import RedisCache
from django.core.signing import BadSignature, JSONSerializer, Signer

log = structlog.get_logger(__name__)

AWAY_SECONDS = 2.0  # after a failure Redis is left alone this long, so that an outage costs a request little
MAX_VALUE_BYTES = 64 * 1024  # whatever is longer was not written here
MAX_INTEGER_DIGITS = 20
TOLD_SECONDS = 60.0  # between two lines in the log about values that cannot be read
SCANNED_KEYS = 1000

UNREACHABLE = (redis.ConnectionError, redis.TimeoutError, redis.exceptions.BusyLoadingError)


class _Unreadable:
    """In place of a value that this site did not write."""


UNREADABLE = _Unreadable()


class SignedJson:
    """Values as JSON with a signature of `SECRET_KEY`; integers as themselves, for Redis counts with them."""

    _told_at: ClassVar[float] = float("-inf")  # by whichever thread's cache

    def dumps(self, value: Any) -> int | str:
        """
        Raises:
            TypeError: it would not come back as it is. A tuple would be a list, a date a text.
        """
        if type(value) is int:
            return value
        if json.loads(json.dumps(value)) != value:
            raise TypeError(f"The cache keeps what JSON can say, not {value!r}.")
        return str(self._signer.sign_object(value, serializer=JSONSerializer))

    def loads(self, data: bytes) -> Any:
        """The value, or UNREADABLE."""
        if len(data) <= MAX_INTEGER_DIGITS and data.removeprefix(b"-").isdigit():
            return int(data)
        try:
            if len(data) > MAX_VALUE_BYTES:
                raise ValueError("too long")
            return self._signer.unsign_object(data.decode("ascii"), serializer=JSONSerializer)
        except (BadSignature, ValueError) as error:  # what cannot be decoded is a ValueError, too
            self._tell(error)
            return UNREADABLE

    @property
    def _signer(self) -> Signer:
        return Signer(salt="chatsite.cache")  # each time: the key is a setting

    @classmethod
    def _tell(cls, error: Exception) -> None:
        if time.monotonic() >= cls._told_at + TOLD_SECONDS:
            cls._told_at = time.monotonic()
            log.warning("a cached value is not ours and counts as absent", reason=type(error).__name__)


class RedisOrOwnMemory(RedisCache):
    def __init__(self, server: str, params: dict[str, Any]) -> None:
        params = {**params, "OPTIONS": {"serializer": SignedJson(), **params.get("OPTIONS", {})}}
        super().__init__(server, params)
        own = {name: value for name, value in params.items() if name.upper() != "OPTIONS"}
        self._own = LocMemCache(f"while redis is away: {server}", own)
        self._away_until = 0.0

    def _first(self, name: str, *arguments: Any, **options: Any) -> Any:
        return self._in_redis(getattr(super(), name), getattr(self._own, name), *arguments, **options)

    def _in_redis(self, there: Callable[..., Any], here: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        if time.monotonic() >= self._away_until:
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
        return here(*arguments, **options)

    def add(self, key: str, *arguments: Any, **options: Any) -> Any:
        """A value that is not ours is not there: else one that never expires would be a lock for ever."""
        has_added = self._first("add", key, *arguments, **options)
        if not has_added and self._is_unreadable(key, options.get("version")):
            self._first("delete", key, version=options.get("version"))
            has_added = self._first("add", key, *arguments, **options)
        return has_added

    def get(self, key: str, default: Any = None, version: int | None = None) -> Any:
        """Also the default, where what lies there is of another kind than it: an integer among lists, say."""
        value = self._first("get", key, default, version=version)
        if value is UNREADABLE or (default is not None and type(value) is not type(default)):
            return default
        return value

    def set(self, *arguments: Any, **options: Any) -> Any:
        return self._first("set", *arguments, **options)

    def touch(self, *arguments: Any, **options: Any) -> Any:
        return self._first("touch", *arguments, **options)

    def delete(self, *arguments: Any, **options: Any) -> Any:
        return self._first("delete", *arguments, **options)

    def get_many(self, *arguments: Any, **options: Any) -> Any:
        found: Mapping[str, Any] = self._first("get_many", *arguments, **options)
        return {key: value for key, value in found.items() if value is not UNREADABLE}

    def has_key(self, key: str, version: int | None = None) -> bool:
        return bool(self._first("has_key", key, version=version)) and not self._is_unreadable(key, version)

    def incr(self, key: str, delta: int = 1, version: int | None = None) -> Any:
        """
        Raises:
            ValueError: no number lies there.
        """
        try:
            return self._first("incr", key, delta, version=version)
        except redis.ResponseError as error:
            raise ValueError(f"Key {key!r} holds no number.") from error

    def set_many(self, *arguments: Any, **options: Any) -> Any:
        return self._first("set_many", *arguments, **options)

    def clear(self) -> None:
        """The cache alone: what else lies in this Redis is the answers under way."""
        self._own.clear()
        self._in_redis(self._clear_there, self._own.clear)

    def _clear_there(self) -> None:
        client = self._cache.get_client(write=True)
        for key in client.scan_iter(match=f"{self.key_prefix}:*", count=SCANNED_KEYS):
            client.delete(key)

    def delete_many(self, *arguments: Any, **options: Any) -> Any:
        return self._first("delete_many", *arguments, **options)

    def _is_unreadable(self, key: str, version: int | None) -> bool:
        return self._first("get", key, version=version) is UNREADABLE
