"""What came for one reader since it last looked: a queue with a bound in bytes. Lives on one event loop."""

from __future__ import annotations

import asyncio
from collections import deque


class Mailbox:
    """Letters up to `max_bytes` in all; beyond that only the fact that more came (`is_stale`).

    A stale mailbox takes no letters until its owner `begin_anew`s, just before reading the truth elsewhere.
    """

    def __init__(self, max_bytes: int) -> None:
        self.is_stale = False
        self.num_bytes = 0
        self._max_bytes = max_bytes
        self._letters: deque[bytes] = deque()
        self._bell = asyncio.Event()

    def put(self, letter: bytes) -> None:
        if self.is_stale:
            return
        if self.num_bytes + len(letter) > self._max_bytes:
            self.go_stale()
            return
        self._letters.append(letter)
        self.num_bytes += len(letter)
        self._bell.set()

    def take(self) -> list[bytes]:
        letters = list(self._letters)
        self._letters.clear()
        self.num_bytes = 0
        return letters

    def go_stale(self) -> None:
        self.take()
        self.is_stale = True
        self._bell.set()

    def begin_anew(self) -> None:
        self.take()
        self.is_stale = False

    async def wait(self, seconds: float) -> None:
        """Return when something came since the last wait, or after so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self._bell.wait()
        except TimeoutError:
            return
        self._bell.clear()
