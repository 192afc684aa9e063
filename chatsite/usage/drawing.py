"""The heat map as figures for an SVG: where each square stands and which month begins where. Knows no colours.

Pure functions of a `summary.Heat`. Called by `views`; drawn by `usage/_heat.html`.
"""

from __future__ import annotations

from dataclasses import dataclass

from chatsite.usage.summary import NUM_SHADES, NUM_WEEKS, Heat, Square

STEP = 12  # from one square to the next, in units of the drawing
SIDE = 10
LEFT, TOP = 4, 14  # room for the names of months above


@dataclass(frozen=True)
class Cell:
    square: Square
    x: int
    y: int
    opacity: str  # of the accent colour; as text, so that no language puts a comma in it


@dataclass(frozen=True)
class Drawing:
    cells: tuple[Cell, ...]
    months: tuple[tuple[int, Square], ...]  # where the first whole week of each begins, and a day of it
    side: int = SIDE
    width: int = LEFT + NUM_WEEKS * STEP
    height: int = TOP + 7 * STEP


def drawn(heat: Heat) -> Drawing:
    cells = [
        Cell(square, LEFT + column * STEP, TOP + row * STEP, _opacity(square.shade))
        for column, week in enumerate(heat.weeks)
        for row, square in enumerate(week)
    ]
    firsts = [week[0] for week in heat.weeks]
    months = [
        (LEFT + column * STEP, first)
        for column, first in enumerate(firsts)
        if column == 0 or first.day.month != firsts[column - 1].day.month
    ]
    if len(months) > 1 and months[1][0] - months[0][0] < 3 * STEP:
        months = months[1:]  # the two names would lie on each other
    return Drawing(tuple(cells), tuple(months))


def _opacity(shade: int) -> str:
    return f"{0.12 + 0.88 * shade / NUM_SHADES:.2f}"
