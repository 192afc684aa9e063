"""Fixtures every folder of tests may use. The servers behind them are started by `tests.servers`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import redis as redis_py
from django.db import connection, transaction
from django.test import TransactionTestCase
from hypothesis import HealthCheck, settings

from tests.fleet import Fleet

# A busy machine draws examples slowly and runs them slowly; neither says anything of what is tested.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")

KEPT_TABLES = {"django_content_type", "auth_permission"}  # what migrating wrote, the same for every test


def _empty_tables(case: Any) -> None:
    """What a test committed goes. Django truncates every table and writes KEPT_TABLES anew: 0.13 s for each test.

    The lock waits for whoever still writes, as truncating does. Triggers that keep records from being deleted do not
    run meanwhile, in this transaction alone: a superuser may say so, whom tests have and a site needs not.
    """
    names = set(connection.introspection.django_table_names(only_existing=True, include_views=False)) - KEPT_TABLES
    tables = [connection.ops.quote_name(name) for name in sorted(names)]
    deletions = "".join(f"DELETE FROM {table};" for table in tables)  # any order: foreign keys are not checked either
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute(f"LOCK TABLE {', '.join(tables)} IN EXCLUSIVE MODE; {deletions}")


TransactionTestCase._fixture_teardown = _empty_tables


@pytest.fixture(scope="session")
def valkey_url() -> str:
    return os.environ["REDIS_URL"]


@pytest.fixture
def redis(valkey_url: str) -> Iterator[redis_py.Redis]:
    """The run's Valkey, emptied before and after."""
    connection = redis_py.Redis.from_url(valkey_url)
    connection.flushall()
    yield connection
    connection.flushall()
    connection.close()


@pytest.fixture(scope="session")
def fleet() -> Iterator[Fleet]:
    """One running site of real processes for all tests that only use it. Who breaks something starts its own."""
    with Fleet() as running:
        yield running


@pytest.fixture(scope="session")
def live_site(fleet: Fleet) -> Fleet:
    """The same for tests that see it through a browser: `.url` is all they need."""
    return fleet
