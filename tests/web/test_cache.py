"""The cache goes on counting while Redis is away: the limits of signing in are neither lifted nor a lock-out. What
others write into Redis in its place is neither run nor believed."""

from __future__ import annotations

import datetime
import pickle
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py
from django.conf import LazySettings
from django.test import Client

from chatsite import cache as cache_module
from chatsite.accounts import attempts
from chatsite.cache import RedisOrOwnMemory
from tests.totp import code
from tests.web import enrolling

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
    assert refused.status_code == 429
    assert 1 <= int(refused["Retry-After"]) <= attempts.FIRST_WAIT_SECONDS
    django_user_model.objects.create_user("bea", password="right horse battery")
    client.post("/accounts/login/", {"login": "bea", "password": "right horse battery"})
    assert "sessionid" in client.cookies


# -- what others write into Redis


class Deed:
    """Pickled, it makes a folder wherever it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.mkdir, (self._marker,))


@pytest.mark.parametrize("value", [0, -7, 2**60, True, "y", "12", 1.5, [1.0, 2.5], {"a": [None, "ü"]}, [], None])
def test_what_is_kept_comes_back_as_it_was(cache: RedisOrOwnMemory, value: Any) -> None:
    cache.set("a", value, timeout=30)
    assert cache.get("a") == value
    assert type(cache.get("a")) is type(value)
    assert cache.get_many(["a"]) == {"a": value}


@pytest.mark.parametrize("value", [(1, 2), {1: 2}, datetime.date(2026, 1, 1), b"bytes", {1, 2}, float("nan")])
def test_what_would_come_back_as_something_else_is_refused(cache: RedisOrOwnMemory, value: Any) -> None:
    with pytest.raises(TypeError):
        cache.set("a", value, timeout=30)


def test_integers_are_counted_by_redis_itself(cache: RedisOrOwnMemory, redis: redis_py.Redis) -> None:
    cache.set("count", 4, timeout=30)
    assert cache.incr("count", 2) == 6
    assert redis.get("{smolfleet}:cache:1:count") == b"6"
    cache.set("text", "x", timeout=30)
    with pytest.raises(ValueError, match="holds no number"):
        cache.incr("text")


@pytest.mark.parametrize(
    "planted",
    [b"", b"\x80\x05}\x94.", b'["not signed"]', b"WyJhIl0:c2lnbmF0dXJl", b"\xff\xfe", b"9" * 5000, b"x" * 1_000_000],
    ids=["empty", "pickle", "json", "forged", "not text", "long integer", "long"],
)
def test_a_value_that_is_not_ours_counts_as_absent(
    cache: RedisOrOwnMemory, redis: redis_py.Redis, planted: bytes
) -> None:
    redis.set("{smolfleet}:cache:1:a", planted)
    assert cache.get("a") is None
    assert cache.get("a", [1.0]) == [1.0]
    assert cache.get_many(["a"]) == {}
    assert not cache.has_key("a")
    assert cache.add("a", True, timeout=30) is True  # else it would be a lock for ever
    assert cache.add("a", True, timeout=30) is False
    assert cache.get("a") is True


def test_an_integer_is_not_taken_for_a_list(cache: RedisOrOwnMemory, redis: redis_py.Redis) -> None:
    redis.set("{smolfleet}:cache:1:history", b"5")
    assert cache.get("history", []) == []


def test_values_that_are_not_ours_are_told_once(
    cache: RedisOrOwnMemory, redis: redis_py.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(cache_module.SignedJson, "_told_at", float("-inf"))
    monkeypatch.setattr(cache_module.log, "warning", lambda event, **_: told.append(event))
    redis.mset({f"{{smolfleet}}:cache:1:{name}": b"planted" for name in "abc"})
    assert [cache.get(name) for name in "abc"] == [None] * 3
    assert len(told) == 1


def test_clearing_the_cache_leaves_the_answers_under_way(cache: RedisOrOwnMemory, redis: redis_py.Redis) -> None:
    cache.set("a", 1)
    redis.set("{smolfleet}:gen:1", "an answer")
    cache.clear()
    assert redis.keys() == [b"{smolfleet}:gen:1"]


@pytest.mark.django_db
def test_nothing_planted_in_redis_is_run_by_signing_in_and_what_belongs_to_it(
    redis: redis_py.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ann: Any, settings: LazySettings
) -> None:
    """The walk is gone twice: to learn which keys it uses, and with a deed under each of them."""
    names: set[str] = set()
    make_key = RedisOrOwnMemory.make_and_validate_key

    def noted(self: RedisOrOwnMemory, key: str, version: int | None = None) -> str:
        names.update((make_key(self, key, version=version), make_key(self, key, version=1)))
        return make_key(self, key, version=version)

    def walk() -> None:
        client = Client()
        wrong = client.post("/accounts/login/", {"login": "ann", "password": "wrong"})
        assert wrong.status_code == 200
        assert enrolling.sign_in(client).status_code == 302
        assert client.post("/accounts/2fa/authenticate/", {"code": code(enrolling.SECRET)})["Location"] == "/"
        assert client.post("/accounts/reauthenticate/", {"password": enrolling.PASSWORD}).status_code == 302
        assert Client().post("/accounts/signup/", {"username": "", "email": "no"}).status_code == 200
        assert Client().post("/accounts/password/reset/", {"email": "ann@example.org"}).status_code == 302

    enrolling.enrol(ann)
    monkeypatch.setattr(RedisOrOwnMemory, "make_and_validate_key", noted)
    walk()
    assert len(names) > 10
    marker = tmp_path / "run"
    redis.flushall()
    redis.mset(dict.fromkeys(names, pickle.dumps(Deed(marker))))
    walk()
    assert not marker.exists()
