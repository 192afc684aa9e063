"""What a call costs, in seconds of CPU of this thread alone: load beside the tests makes it noisier, not longer.

`assert_bounded` is for whatever reads a stranger's input: its cost per kilobyte stays under a bound, and grows with the
input and no faster. Bounds are generous (several times what a slow machine takes): they are there for the quadratic and
the exponential, which pass any bound.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T", str, bytes)

SIZES = (4_096, 65_536)  # bytes or characters; sixteen times as much
GROWTH = 4.0  # how many times more than in proportion the larger may cost: noise, caches, collections of garbage
NOISE_SECONDS = 0.05  # what no comparison is made below


def cpu_seconds(call: Callable[[], object]) -> float:
    """The CPU time of this thread that `call` took; the lower of two, for the first also fills caches."""
    return min(_once(call), _once(call))


def _once(call: Callable[[], object]) -> float:
    begun = time.thread_time()
    call()
    return time.thread_time() - begun


def filled(pattern: T, size: int) -> T:
    """`pattern` again and again, `size` long."""
    return (pattern * (size // len(pattern) + 1))[:size]


def assert_bounded(
    make: Callable[[int], T],
    call: Callable[[T], object],
    *,
    ms_per_kb: float,
    sizes: tuple[int, int] = SIZES,
) -> None:
    """`call(make(size))` costs at most `ms_per_kb` at both sizes, and per kilobyte not much more at the larger."""
    small, large = make(sizes[0]), make(sizes[1])
    cost_small = cpu_seconds(lambda: call(small))
    cost_large = cpu_seconds(lambda: call(large))
    for given, cost in ((small, cost_small), (large, cost_large)):
        bound = ms_per_kb * max(len(given), 1_024) / 1_024 / 1_000
        assert cost <= bound, (
            f"{len(given)} of {given[:40]!r}…: {cost * 1000:.0f} ms of CPU, at most {bound * 1000:.0f}"
        )
    if cost_large > NOISE_SECONDS:
        expected = max(cost_small, NOISE_SECONDS / 16) * len(large) / max(len(small), 1)
        assert cost_large <= GROWTH * expected, (
            f"{given[:40]!r}…: {len(small)} cost {cost_small * 1000:.1f} ms of CPU, {len(large)} {cost_large * 1e3:.0f}"
        )
