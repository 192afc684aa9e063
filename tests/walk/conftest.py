"""One world for all tests of a file: it is committed once, and no request of the walk changes it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import channels.db
import pytest
import redis as redis_py
from django.conf import settings
from django.db import close_old_connections, connection
from django.test import TransactionTestCase, override_settings

from tests.walk import world as worlds
from tests.walk.visiting import Site
from tests.web.chat_worker import MODEL


def _close_those_in_no_transaction() -> None:
    if not connection.in_atomic_block:
        close_old_connections()


@pytest.fixture(autouse=True)
def transactions_stay_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """A view that goes through Channels to the database would end the transaction that the walk is in."""
    monkeypatch.setattr(channels.db, "close_old_connections", _close_those_in_no_transaction)


@pytest.fixture
def site(db: None, built: Site) -> Iterator[Site]:
    """The same world for each test, in a transaction of its own."""
    built.begin()
    yield built
    built.forget_changes()


@pytest.fixture(scope="module")
def built(django_db_setup: None, django_db_blocker: Any, valkey_url: str) -> Iterator[Site]:
    redis = redis_py.Redis.from_url(valkey_url)
    ours = settings.SMOLFLEET.replace(
        default_model=MODEL, max_requests_per_minute=0, max_active_per_user=50, model_titles=False
    )
    values = {
        "SMOLFLEET": ours,
        "PASSWORD_HASHERS": ["django.contrib.auth.hashers.MD5PasswordHasher"],  # quick
        "ACCOUNT_REAUTHENTICATION_TIMEOUT": 86_400,  # however long the walk takes
    }
    logging.disable(logging.CRITICAL)  # thousands of refusals, each with a line
    redis.flushall()
    try:
        with django_db_blocker.unblock(), override_settings(**values):
            site = Site(worlds.build(redis), redis)
            yield site
            TransactionTestCase._fixture_teardown(None)  # type: ignore[arg-type]  # ours: see the conftest above
    finally:
        logging.disable(logging.NOTSET)
        redis.flushall()
        redis.close()
