"""Questions to Postgres that must be answered, or refused, within a second: for probes.

Each asks over a connection of its own, never the pool's: the pool may be what is in trouble. Called from any thread.
"""

from __future__ import annotations

from typing import Any

import psycopg
from django.db import connection
from psycopg.abc import QueryNoTemplate

CONNECT_SECONDS = 2  # the least that libpq takes; callers give up on us earlier than that
STATEMENT_MS = 1_000


def ask(*questions: tuple[QueryNoTemplate, tuple[object, ...]]) -> list[list[tuple[Any, ...]]]:
    """The rows of each question.

    Raises:
        psycopg.Error: no connection, or no answer in time.
    """
    facts = connection.settings_dict
    options = {name: value for name, value in facts["OPTIONS"].items() if name != "pool"}
    options |= {
        "connect_timeout": CONNECT_SECONDS,
        "application_name": "smolfleet-probe",
        "options": f"-c statement_timeout={STATEMENT_MS}",
    }
    with psycopg.connect(
        dbname=facts["NAME"],
        user=facts["USER"] or None,
        password=facts["PASSWORD"] or None,
        host=facts["HOST"] or None,
        port=facts["PORT"] or None,
        autocommit=True,
        **options,
    ) as own:
        return [own.execute(text, values).fetchall() for text, values in questions]
