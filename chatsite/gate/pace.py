"""How slowly a body may come: never still for longer than `seconds`, and on average at a least rate after that."""

from __future__ import annotations


class Pace:
    def __init__(self, *, seconds: float, bytes_per_second: int) -> None:
        self._seconds = seconds
        self._bytes_per_second = bytes_per_second
        self._waited = 0.0  # for the client alone: what the site does in between is not its fault
        self._num_bytes = 0

    def seconds_left(self) -> float:
        """How long the next piece may be waited for."""
        allowed = self._seconds + self._num_bytes / self._bytes_per_second
        return max(0.0, min(self._seconds, allowed - self._waited))

    def note(self, *, waited: float, num_bytes: int) -> None:
        self._waited += waited
        self._num_bytes += num_bytes
