"""One user's requests per minute are counted, and a Redis that is away neither stops the site nor opens it wide."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
import redis as redis_py
from redis.backoff import NoBackoff
from redis.retry import Retry

from chatsite.accounts import limits
from chatsite.accounts.adapter import AccountAdapter
from chatsite.accounts.limits import RateExceeded, RequestRate


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1_000_000_020.0]
    monkeypatch.setattr(limits.time, "time", lambda: now[0])
    return now


def test_each_user_has_a_count_and_a_new_minute_begins_anew(redis: redis_py.Redis, clock: list[float]) -> None:
    rate = RequestRate(redis)
    alice, bob = uuid.uuid4(), uuid.uuid4()
    for _ in range(3):
        rate.take(alice, 3)
    with pytest.raises(RateExceeded) as exceeded:
        rate.take(alice, 3)
    assert 1 <= exceeded.value.retry_after_seconds <= 60
    rate.take(bob, 3)
    RequestRate(redis).take(bob, 3)  # another process counts on
    clock[0] += exceeded.value.retry_after_seconds
    rate.take(alice, 3)
    assert all(0 < redis.ttl(key) <= 120 for key in redis.keys("*rate*"))


@pytest.mark.parametrize("planted", [b"x", b"", b"\x80\x05}.", b"9223372036854775807"])
def test_a_count_that_is_none_begins_anew(redis: redis_py.Redis, clock: list[float], planted: bytes) -> None:
    rate = RequestRate(redis)
    alice = uuid.uuid4()
    rate.take(alice, 2)
    (key,) = redis.keys("*rate*")
    redis.set(key, planted)
    for _ in range(2):
        rate.take(alice, 2)
    with pytest.raises(RateExceeded):
        rate.take(alice, 2)
    assert 0 < redis.ttl(key) <= 120


def test_no_limit_counts_nothing(redis: redis_py.Redis) -> None:
    RequestRate(redis).take(uuid.uuid4(), 0)
    assert redis.keys("*rate*") == []


def test_without_redis_a_small_share_passes(clock: list[float]) -> None:
    away = redis_py.Redis(port=1, retry=Retry(NoBackoff(), 0))
    rate = RequestRate(away)
    alice = uuid.uuid4()
    for _ in range(5):
        rate.take(alice, 20)
    with pytest.raises(RateExceeded):
        rate.take(alice, 20)
    clock[0] += 60
    rate.take(alice, 20)
    assert len(rate._own) == 1
    away.close()


def test_sign_up_is_open_as_the_operator_says(settings: Any, rf: Any) -> None:
    for is_open in (True, False):
        settings.SMOLFLEET = settings.SMOLFLEET.replace(sign_up_open=is_open)
        assert AccountAdapter().is_open_for_signup(rf.get("/")) is is_open
