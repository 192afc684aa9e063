"""Work that one process at a time should do, whichever it is: Postgres decides, by a lock that is of no table.

Held by the session, not by a transaction: what is done meanwhile is committed piece by piece, and a dead process's lock
goes with its connection. Called by the site worker's tasks and by commands.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from django.db import connection

SWEEP = 0x5F1EE7  # the locks that there are; any numbers, as long as they differ
RETENTION = 0x5F1EE8


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
