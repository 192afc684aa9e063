"""Bounds of one open stream and of all streams of a user in this process. Counters only; on the event loop.

Daphne queues whatever it is given, however slowly the client reads. So a stream ends itself after so many bytes or so
long, and the client comes back with its cursor: a reader that never reads cannot make the queue grow beyond that.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator
from uuid import UUID

from django.conf import settings

MAX_STREAM_SECONDS = 300.0
RECHECK_SECONDS = 20.0  # an open stream asks whether it may go on; usually it is told before: see `revocation`


class TooManyStreams(Exception):
    """The user has as many streams open in this process as one may have."""


_open: Counter[UUID] = Counter()


@contextlib.contextmanager
def seat(user_id: UUID) -> Iterator[None]:
    """Hold one of the user's streams for this block.

    Raises:
        TooManyStreams: none is left.
    """
    if _open[user_id] >= settings.SMOLFLEET.max_streams_per_user:
        raise TooManyStreams
    _open[user_id] += 1
    try:
        yield
    finally:
        _open[user_id] -= 1
        if not _open[user_id]:
            del _open[user_id]


class Budget:
    """What one stream may still send; by default so much as an unread one may cost."""

    def __init__(self, max_bytes: int | None = None, max_seconds: float = MAX_STREAM_SECONDS) -> None:
        self._bytes_left = settings.SMOLFLEET.stream_buffer_bytes if max_bytes is None else max_bytes
        self._ends_at = asyncio.get_running_loop().time() + max_seconds

    def spend(self, num_bytes: int) -> None:
        self._bytes_left -= num_bytes

    @property
    def is_spent(self) -> bool:
        return self._bytes_left <= 0 or asyncio.get_running_loop().time() >= self._ends_at
