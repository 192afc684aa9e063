"""Bars for an inline SVG: whole numbers that need no style and no script. `templates/ops/_chart.html` draws them.

A drawing is stretched to the width there is, so it holds bars alone; every word stands beside it. All its numbers are
also in a table of the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

STEP = 10  # from one bar to the next; a bar takes what `GAP` leaves
GAP = 2
HEIGHT = 1_000


@dataclass(frozen=True)
class Part:
    """A piece of a bar. `series` is the word of its series, which the style sheet knows a colour for."""

    series: str
    y: int
    height: int


@dataclass(frozen=True)
class Bar:
    x: int
    words: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Chart:
    """`top`: the value that the full height stands for."""

    title: str
    series: tuple[str, ...]
    bars: tuple[Bar, ...]
    first: str
    last: str
    top: int

    @property
    def width(self) -> int:
        return len(self.bars) * STEP

    @property
    def height(self) -> int:
        return HEIGHT

    @property
    def bar_width(self) -> int:
        return STEP - GAP


def stacked(title: str, labels: Sequence[str], series: Sequence[tuple[str, Sequence[int]]]) -> Chart:
    """One bar for each label, its parts one on the other, the first series at the bottom.

    `labels` and the values of every series are of one length, at least 1; no value is negative.
    """
    columns = list(zip(*(values for _, values in series), strict=True))
    assert len(columns) == len(labels) > 0
    top = max(sum(column) for column in columns)
    names = tuple(name for name, _ in series)
    bars = tuple(
        Bar(number * STEP + GAP // 2, _words(label, names, column), tuple(_parts(names, column, top)))
        for number, (label, column) in enumerate(zip(labels, columns, strict=True))
    )
    return Chart(title, names, bars, labels[0], labels[-1], top)


def _parts(names: Sequence[str], column: Sequence[int], top: int) -> list[Part]:
    """Their edges are rounded, not their heights, so that no gap opens between two."""
    parts, below = [], 0
    for name, value in zip(names, column, strict=True):
        lower, upper = (HEIGHT * edge // top if top else 0 for edge in (below, below + value))
        if value:
            upper = max(upper, lower + 1)  # what is there is seen
            parts.append(Part(name.lower(), HEIGHT - upper, upper - lower))
        below += value
    return parts


def _words(label: str, names: Sequence[str], column: Sequence[int]) -> str:
    return f"{label}: " + ", ".join(f"{value:,} {name.lower()}" for name, value in zip(names, column, strict=True))
