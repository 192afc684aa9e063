"""Entries as a CSV file, piece by piece: a log of years is never in memory, nor a connection held while it is sent."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from uuid import UUID

from channels.db import database_sync_to_async
from django.db.models import QuerySet

from chatsite import sheets
from chatsite.audit.models import AuditEntry

COLUMNS = ("at", "action", "actor", "subject", "target", "detail", "ip")
ROWS_AT_ONCE = 500


async def pieces(found: QuerySet[AuditEntry]) -> AsyncIterator[bytes]:
    """Newest first, with the names of the columns on the first line. Times are of UTC, `detail` is JSON."""
    yield _lines([COLUMNS])
    last: UUID | None = None
    while entries := await database_sync_to_async(_after)(found, last):
        yield _lines(map(_cells, entries))
        last = entries[-1].pk


def _after(found: QuerySet[AuditEntry], last: UUID | None) -> list[AuditEntry]:
    rows = found if last is None else found.filter(pk__lt=last)
    return list(rows.order_by("-id")[:ROWS_AT_ONCE])


def _cells(entry: AuditEntry) -> list[str]:
    detail = json.dumps(entry.detail, ensure_ascii=False) if entry.detail else ""
    names = (entry.action, entry.actor_name, entry.subject_name, entry.target, detail)
    return [entry.at.isoformat(), *names, entry.ip or ""]


def _lines(rows: Iterable[Iterable[str]]) -> bytes:
    return sheets.lines(rows).encode()
