"""One person's ledger as their own page shows it: sums of a time, by what was used, and a square for each day.

Owns what is added up with what; a title costs nothing and answers nobody, so it counts among the sources alone. Reads
rows, writes none. Called by `views`.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from chatsite.accounts.models import User
from chatsite.usage.models import UsageDay

NUM_WEEKS = 26  # of the heat map, the current one included
RECENT_DAYS = 30
TITLE = "title"
NUM_SHADES = 4


@dataclass(frozen=True)
class Sums:
    """Of some answers. Tokens read include the cached ones."""

    num_answers: int = 0
    read_tokens: int = 0
    cached_tokens: int = 0
    written_tokens: int = 0
    charged_tokens: int = 0
    decode_seconds: float = 0.0

    @property
    def tokens_per_second(self) -> float | None:
        return self.written_tokens / self.decode_seconds if self.decode_seconds > 0 else None


@dataclass(frozen=True)
class Square:
    """One day of the heat map. `shade` 0: nothing counted; else up to NUM_SHADES, by the fullest day shown."""

    day: datetime.date
    tokens: int
    shade: int


@dataclass(frozen=True)
class Heat:
    """Weeks from Monday, the eldest first; the last ends today."""

    weeks: tuple[tuple[Square, ...], ...]

    @property
    def busy(self) -> list[Square]:
        """Days with something to count, the newest first."""
        return [square for week in reversed(self.weeks) for square in reversed(week) if square.tokens]

    @property
    def fullest(self) -> Square | None:
        return max(self.busy, key=lambda square: square.tokens, default=None)


@dataclass(frozen=True)
class Summary:
    today: Sums
    this_month: Sums
    recent: Sums  # the last RECENT_DAYS, today included; so are the next three
    models: tuple[tuple[str, Sums], ...]
    sources: tuple[tuple[str, Sums], ...]
    keys: tuple[tuple[str, Sums], ...]  # by a key's name, or its beginning; "": keys that were deleted
    heat: Heat


def of(user: User, today: datetime.date) -> Summary:
    first = _first_day(today)
    since = today - datetime.timedelta(days=RECENT_DAYS - 1)
    rows = list(UsageDay.objects.filter(user=user, day__gte=first).select_related("api_key"))
    answers = [row for row in rows if row.source != TITLE]
    recent = [row for row in answers if row.day >= since]
    return Summary(
        today=_sums(row for row in answers if row.day == today),
        this_month=_sums(row for row in answers if row.day >= today.replace(day=1)),
        recent=_sums(recent),
        models=_by(recent, lambda row: row.model),
        sources=_by((row for row in rows if row.day >= since), lambda row: row.source),
        keys=_by((row for row in recent if row.source == "api"), _key_name),
        heat=_heat(answers, first, today),
    )


def _first_day(today: datetime.date) -> datetime.date:
    return today - datetime.timedelta(days=today.weekday() + 7 * (NUM_WEEKS - 1))


def _key_name(row: UsageDay) -> str:
    return (row.api_key.name or f"{row.api_key.shown}…") if row.api_key else ""


def _by(rows: Iterable[UsageDay], name_of: Callable[[UsageDay], str]) -> tuple[tuple[str, Sums], ...]:
    """The most charged first."""
    groups: dict[str, list[UsageDay]] = {}
    for row in rows:
        groups.setdefault(name_of(row), []).append(row)
    sums = [(name, _sums(group)) for name, group in groups.items()]
    return tuple(sorted(sums, key=lambda pair: (-pair[1].charged_tokens, pair[0])))


def _sums(rows: Iterable[UsageDay]) -> Sums:
    rows = list(rows)
    return Sums(
        sum(row.num_answers for row in rows),
        sum(row.prompt_tokens for row in rows),
        sum(row.cached_tokens for row in rows),
        sum(row.completion_tokens for row in rows),
        sum(row.charged_tokens for row in rows),
        sum(row.decode_seconds for row in rows),
    )


def _heat(rows: list[UsageDay], first: datetime.date, today: datetime.date) -> Heat:
    tokens: dict[datetime.date, int] = {}
    for row in rows:
        tokens[row.day] = tokens.get(row.day, 0) + row.charged_tokens
    most = max(tokens.values(), default=0)

    def squares() -> Iterator[Square]:
        for number in range((today - first).days + 1):
            day = first + datetime.timedelta(days=number)
            found = tokens.get(day, 0)
            yield Square(day, found, -(-found * NUM_SHADES // most) if most else 0)

    days = list(squares())
    return Heat(tuple(tuple(days[at : at + 7]) for at in range(0, len(days), 7)))
