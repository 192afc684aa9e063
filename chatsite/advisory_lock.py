"""Work that one process at a time should do, whichever it is: Postgres decides, by a lock that is of no table.

Held by the session, not by a transaction: what is done meanwhile is committed piece by piece, and a dead process's lock
goes with its connection. Called by the site worker's tasks and by commands.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from django.db import connection

SWEEP = 0x5F1EE7  # the locks that there are; any numbers, as long as they differ
RETENTION = 0x5F1EE8
PREPARE = 0x736D6F6C

POLL_SECONDS = 0.2


@contextlib.contextmanager
def held(lock: int) -> Iterator[bool]:
    """Hold `lock` for this block. False, without waiting, when another process has it: then leave the work to that one.

    Raises:
        DatabaseError: nobody can tell.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s)", [lock])
        (is_held,) = cursor.fetchone()
        try:
            yield is_held
        finally:
            if is_held:
                cursor.execute("SELECT pg_advisory_unlock(%s)", [lock])


@contextlib.contextmanager
def waited_for(lock: int, *, tell: Callable[[], None]) -> Iterator[None]:
    """Hold `lock` for this block, after waiting for whoever has it; `tell` is called once when that is so.

    Asked again and again, outside any transaction: a session that waits inside Postgres keeps its snapshot, and CREATE
    INDEX CONCURRENTLY, which the holder may be at, waits for every snapshot: a deadlock.

    Raises:
        DatabaseError: nobody can tell.
    """
    has_told = False
    while True:
        with held(lock) as is_held:
            if is_held:
                yield
                return
        if not has_told:
            tell()
            has_told = True
        time.sleep(POLL_SECONDS)
