"""The cache goes on counting while Redis is away: allauth's limits on signing in are neither lifted nor a lock-out."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
import redis as redis_py
from django.conf import LazySettings
from django.test import Client

from chatsite import cache as cache_module
from chatsite.cache import RedisOrOwnMemory

FAST = {"OPTIONS": {"socket_connect_timeout": 0.5, "socket_timeout": 0.5}, "KEY_PREFIX": "{smolfleet}:cache"}


@pytest.fixture
def closed_url() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"redis://127.0.0.1:{probe.getsockname()[1]}/0"


@pytest.fixture
def cache(valkey_url: str, redis: redis_py.Redis, monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisOrOwnMemory]:
    monkeypatch.setattr(cache_module, "AWAY_SECONDS", 0.0)  # Redis is tried again at every call
    made = RedisOrOwnMemory(valkey_url, {**FAST, "OPTIONS": dict(FAST["OPTIONS"])})
    yield made
    made.clear()


def test_values_lie_in_redis_under_our_prefix(cache: RedisOrOwnMemory, redis: redis_py.Redis) -> None:
    cache.set("a", [1, 2], timeout=30)
    assert cache.get("a") == [1, 2]
    assert redis.keys("{smolfleet}:cache:*") == [b"{smolfleet}:cache:1:a"]
    assert cache.get_many(["a", "b"]) == {"a": [1, 2]}


def test_own_memory_counts_while_redis_is_away(closed_url: str) -> None:
    cache = RedisOrOwnMemory(closed_url, {**FAST, "OPTIONS": dict(FAST["OPTIONS"])})
    assert cache.add("lock", True, timeout=10) is True
    assert cache.add("lock", True, timeout=10) is False
    cache.set("history", [1.0], timeout=10)
    assert cache.get("history") == [1.0]
    assert cache.incr("count", delta=0) == 0 if cache.add("count", 0) else False
    cache.delete("lock")
    assert cache.get("lock") is None
    cache.clear()
    assert cache.get("history") is None


def test_redis_is_used_again_when_it_is_back(
    cache: RedisOrOwnMemory, redis: redis_py.Redis, closed_url: str, valkey_url: str
) -> None:
    cache.set("a", 1)
    there = cache._servers
    cache._servers, cache.__dict__["_cache"] = [closed_url], cache._class([closed_url], **cache._options)
    assert cache.get("a") is None
    cache._servers, cache.__dict__["_cache"] = there, cache._class(there, **cache._options)
    assert cache.get("a") == 1


@pytest.mark.django_db
def test_signing_in_is_limited_and_possible_without_redis(
    client: Client, settings: LazySettings, closed_url: str, django_user_model: Any
) -> None:
    django_user_model.objects.create_user("ann", password="right horse battery")
    settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": closed_url}}
    for _ in range(6):
        client.post("/accounts/login/", {"login": "ann", "password": "wrong"})
    refused = client.post("/accounts/login/", {"login": "ann", "password": "right horse battery"})
    assert "sessionid" not in client.cookies
    assert refused.status_code in (200, 429)
    django_user_model.objects.create_user("bea", password="right horse battery")
    client.post("/accounts/login/", {"login": "bea", "password": "right horse battery"})
    assert "sessionid" in client.cookies
