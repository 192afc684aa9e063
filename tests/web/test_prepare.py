"""`manage.py prepare`: from several nodes at once, and what it says when the database refuses."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from django.db import DatabaseError, connection
from django.db.utils import OperationalError

from chatsite import advisory_lock
from chatsite.database_url import is_connection_trouble
from chatsite.settings import database_trouble

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def empty_database() -> Iterator[str]:
    """The address of a database with nothing in it, on the run's server."""
    url, name = os.environ["DATABASE_URL"], f"prepare_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(url, autocommit=True) as server:
        server.execute(f'CREATE DATABASE "{name}"')
        yield url.rsplit("/", 1)[0] + f"/{name}"
        server.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def prepare(url: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "manage.py", "prepare", "--no-static"],
        cwd=ROOT,
        env={**os.environ, "DATABASE_URL": url, "ADMIN_PASSWORD": "only-for-this-test"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.e2e
def test_three_nodes_prepare_an_empty_database_at_once(empty_database: str) -> None:
    """The index of the search is made CONCURRENTLY: a node that waited for the lock inside Postgres was a deadlock."""
    nodes = [prepare(empty_database) for _ in range(3)]
    said = [node.communicate(timeout=200)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0, 0], said
    assert sum("Admin user: admin" in text for text in said) == 1, said
    with psycopg.connect(empty_database) as database:
        index = "SELECT indisvalid FROM pg_index WHERE indexrelid = 'search_words'::regclass"
        assert database.execute(index).fetchone() == (True,)


@pytest.mark.django_db(transaction=True)
def test_whoever_waits_for_the_lock_holds_no_snapshot_and_says_so_once() -> None:
    told: list[str] = []
    with psycopg.connect(
        os.environ["DATABASE_URL"].rsplit("/", 1)[0] + f"/{connection.settings_dict['NAME']}"
    ) as other:
        other.autocommit = True
        other.execute("SELECT pg_advisory_lock(%s)", [advisory_lock.PREPARE])
        (pid,) = connection.cursor().execute("SELECT pg_backend_pid()").fetchone()  # type: ignore[union-attr]

        def tell() -> None:
            told.append("waits")
            state = "SELECT state, backend_xmin FROM pg_stat_activity WHERE pid = %s"
            assert other.execute(state, [pid]).fetchone() == ("idle", None)
            other.execute("SELECT pg_advisory_unlock(%s)", [advisory_lock.PREPARE])

        with advisory_lock.waited_for(advisory_lock.PREPARE, tell=tell):
            assert told == ["waits"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SET LOCAL statement_timeout = 1; SELECT pg_sleep(5)", "statement timeout"),
        ("SELECT * FROM there_is_no_such_table", "does not exist"),
        ("DO $$ BEGIN RAISE EXCEPTION 'deadlock detected' USING ERRCODE = '40P01'; END $$", "deadlock detected"),
        (
            "DO $$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$",
            "could not extend file",
        ),
    ],
)
def test_what_postgres_refuses_is_told_as_what_it_is(sql: str, words: str) -> None:
    with pytest.raises(DatabaseError) as caught, connection.cursor() as cursor:
        cursor.execute(f"BEGIN; {sql}")
    connection.close()
    sentence = database_trouble(caught.value)
    assert words in sentence
    assert "cannot be reached" not in sentence


@pytest.mark.django_db(transaction=True)
def test_a_connection_that_fails_or_breaks_is_called_out_of_reach() -> None:
    with pytest.raises(OperationalError) as broken, connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
    connection.close()
    assert is_connection_trouble(broken.value)
    with pytest.raises(psycopg.OperationalError) as refused:
        psycopg.connect("postgresql://127.0.0.1:1/nothing", connect_timeout=5)
    assert is_connection_trouble(refused.value)
    with pytest.raises(psycopg.OperationalError) as denied:
        psycopg.connect(
            os.environ["DATABASE_URL"].replace(":", ":not-the-password-", 2).replace("not-the-password-", "", 1)
        )
    assert is_connection_trouble(denied.value)
