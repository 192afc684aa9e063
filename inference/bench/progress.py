"""A bar that fills while a run is under way: on a terminal alone, and gone from the line's way afterwards."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TextIO

WIDTH = 30
REDRAW_SECONDS = 0.1


class Progress:
    """`step` once for each of `total` requests that ended. One thread."""

    def __init__(self, label: str, total: int, stream: TextIO | None = None) -> None:
        self._label, self._total, self._done = label, total, 0
        self._stream = stream or sys.stderr
        self._began = time.monotonic()
        self._drawn_at = 0.0

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._drawn_at:
            self._draw()
            self._stream.write("\n")
            self._stream.flush()

    def step(self) -> None:
        self._done += 1
        if self._stream.isatty() and time.monotonic() - self._drawn_at >= REDRAW_SECONDS:
            self._drawn_at = time.monotonic()
            self._draw()

    def _draw(self) -> None:
        filled = WIDTH * self._done // max(1, self._total)
        bar = "█" * filled + "·" * (WIDTH - filled)
        seconds = time.monotonic() - self._began
        self._stream.write(f"\r{self._label:>12}  {bar}  {self._done} of {self._total}, {seconds:.0f} s")
        self._stream.flush()
