"""What the analytics page says: how much is used, by whom, how well it works. Reads rows, writes none, knows no text.

Sums come from the ledger (`UsageDay`), which outlives deleted conversations; failures, waiting and opinions from what
still stands, imported answers included. Days are those of `TIME_ZONE`, as in the ledger. A report takes eight queries,
however much there is to tell: the ledger is read by its days, answers by their end and only the newest. Called by
`analytics_views` alone.
"""

from __future__ import annotations

import datetime
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.contrib.auth.models import Group
from django.db import connection
from django.db.models import Count, QuerySet, Sum
from django.utils import timezone, translation

from chatsite.accounts.models import User
from chatsite.chat.models import Feedback
from chatsite.usage.models import UsageDay

DAYS = (7, 30, 90)
DEFAULT_DAYS = 30
MAX_PEOPLE = 20
MAX_CODES = 20
TIMED_ANSWERS = 10_000  # the newest: enough for percentiles, and quick however long the period is
EXAMINED_ANSWERS = 100_000  # the newest, for failures: they have no index of their own
READ_OPINIONS = 10_000  # the newest: each one's answer is looked up
SOURCES = {"chat": "Chat", "api": "API", "temporary": "Temporary chats", "title": "Titles"}
SUMMED = (
    *("num_answers", "num_failed", "num_stopped"),
    *("prompt_tokens", "cached_tokens", "completion_tokens", "decode_seconds"),
)

_TIMES = """
SELECT model, count(*), percentile_cont(ARRAY[0.5, 0.95]) WITHIN GROUP (ORDER BY seconds)
FROM (
    SELECT model, greatest(extract(epoch FROM ended_at - created_at) - decode_seconds, 0) AS seconds
    FROM chat_generation
    WHERE ended_at >= %(since)s AND status = 'done' AND source <> 'title'
    ORDER BY ended_at DESC
    LIMIT %(most)s
) newest
GROUP BY model
ORDER BY count(*) DESC, model
"""
_FAILURES = """
SELECT error_code, count(*)
FROM (
    SELECT status, error_code FROM chat_generation
    WHERE ended_at >= %(since)s ORDER BY ended_at DESC LIMIT %(most)s
) newest
WHERE status = 'failed'
GROUP BY error_code
ORDER BY count(*) DESC, error_code
LIMIT %(codes)s
"""
_OPINIONS = """
SELECT coalesce(generation.model, ''), rating, reason, count(*)
FROM (
    SELECT message_id, rating, reason FROM chat_feedback
    WHERE created_at >= %(since)s ORDER BY id DESC LIMIT %(most)s
) newest LEFT JOIN LATERAL (
    SELECT model FROM chat_generation WHERE message_id = newest.message_id
    LIMIT 1 -- there is no other; but so each is looked up, where a join would read through the whole index
) generation ON true
GROUP BY 1, 2, 3
"""


class UnknownPeriod(Exception):
    """There is no such period; the sentence says which there are."""


@dataclass(frozen=True)
class Period:
    """Whole days, today's first hours included."""

    days: int
    last: datetime.date

    @classmethod
    def of(cls, asked: str | None) -> Period:
        """The period that `asked` names, ending today; None: the default.

        Raises:
            UnknownPeriod: it is not one of `DAYS`.
        """
        if asked is None:
            return cls(DEFAULT_DAYS, timezone.localdate())
        found = [days for days in DAYS if str(days) == asked]
        if not found:
            raise UnknownPeriod(f"There is no period of “{asked[:20]}” days; choose 7, 30 or 90.")
        return cls(found[0], timezone.localdate())

    @property
    def first(self) -> datetime.date:
        return self.last - datetime.timedelta(days=self.days - 1)

    @property
    def since(self) -> datetime.datetime:
        """The first day's midnight."""
        return timezone.make_aware(datetime.datetime.combine(self.first, datetime.time.min))

    def __iter__(self) -> Iterator[datetime.date]:
        return (self.first + datetime.timedelta(days=number) for number in range(self.days))


@dataclass(frozen=True)
class Used:
    """Sums of something named `name`; `num_answers` counts all that ended, also those that failed or were stopped."""

    name: str = ""
    num_people: int = 0
    num_answers: int = 0
    num_failed: int = 0
    num_stopped: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    decode_seconds: float = 0.0
    num_good: int = 0
    num_bad: int = 0

    @property
    def read_tokens(self) -> int:
        """Of the prompts, those that no worker knew already."""
        return max(self.prompt_tokens - self.cached_tokens, 0)

    @property
    def num_done(self) -> int:
        return max(self.num_answers - self.num_failed - self.num_stopped, 0)

    @property
    def failed_percent(self) -> float | None:
        return _percent(self.num_failed, self.num_answers)

    @property
    def stopped_percent(self) -> float | None:
        return _percent(self.num_stopped, self.num_answers)

    @property
    def good_percent(self) -> float | None:
        """Of the opinions given; None while there is none."""
        return _percent(self.num_good, self.num_good + self.num_bad)

    @property
    def tokens_per_second(self) -> float | None:
        """Of one answer, while it is being written."""
        return self.completion_tokens / self.decode_seconds if self.decode_seconds > 0 else None


@dataclass(frozen=True)
class Times:
    """Seconds from the question to the first token: half of the answers needed at most `median`, 95 of 100 `most`."""

    model: str
    num_answers: int
    median: float
    most: float


@dataclass(frozen=True)
class Report:
    """Of one period. `days` has every day, the first one first; the other lists have the most first.

    Whoever is in several groups now counts in each of them; `people` are those with the most tokens read and written.
    `error_text` are error codes, `reasons` why answers were called bad, each with how often.
    """

    period: Period
    total: Used
    days: list[Used]
    models: list[Used]
    sources: list[Used]
    groups: list[Used]
    people: list[Used]
    times: list[Times]
    failures: list[tuple[str, int]]
    reasons: list[tuple[str, int]]


Row = Mapping[str, Any]


def report(period: Period) -> Report:
    ledger = _ledger(period)
    cells = list(ledger.values("day", "model", "source").annotate(**_sums()))
    shares = list(ledger.values("user_id", "source").annotate(**_sums()))
    num_people = ledger.values_list("day").annotate(Count("user", distinct=True))
    opinions = _opinions(period)
    return Report(
        period,
        total=_sum("all", cells, len({row["user_id"] for row in shares}), _ratings(opinions)),
        days=_days(period, cells, dict(num_people)),
        models=_models(cells, opinions),
        sources=[_sum(SOURCES.get(name, name), rows, len(rows)) for name, rows in _most_used(_by(shares, "source"))],
        groups=_groups(shares),
        people=_people(shares),
        times=[Times(model, number, *quantiles) for model, number, quantiles in _times(period)],
        failures=[(code or "not known", number) for code, number in _failures(period)],
        reasons=_reasons(opinions),
    )


def by_day_model_and_source(period: Period) -> Iterator[tuple[str, str, Used]]:
    """(day, source, sums by model), for the file."""
    people = Count("user", distinct=True)
    rows = _ledger(period).values("day", "model", "source").annotate(num_people=people, **_sums())
    for row in rows.order_by("day", "model", "source"):
        yield row["day"].isoformat(), row["source"], _sum(row["model"], [row], row["num_people"])


def _days(period: Period, cells: Sequence[Row], num_people: dict[datetime.date, int]) -> list[Used]:
    found = _by(cells, "day")
    return [_sum(day.isoformat(), found.get(day, []), num_people.get(day, 0)) for day in period]


def _models(cells: Sequence[Row], opinions: list[Any]) -> list[Used]:
    """Also one of which only the opinions are left in this period."""
    found = _by(cells, "model")
    for model, *_ in opinions:
        found.setdefault(model, [])
    return [
        _sum(name or "not known", rows, 0, _ratings(opinion for opinion in opinions if opinion[0] == name))
        for name, rows in _most_used(found)
    ]


def _groups(shares: Sequence[Row]) -> list[Used]:
    names: dict[Any, list[str]] = defaultdict(list)
    for user_id, name in Group.objects.filter(user__isnull=False).values_list("user", "name"):
        names[user_id].append(name)
    found: dict[str, list[Row]] = defaultdict(list)
    for row in shares:
        for name in names.get(row["user_id"]) or ["in no group"]:
            found[name].append(row)
    return [_sum(name, rows, len({row["user_id"] for row in rows})) for name, rows in _most_used(found)]


def _people(shares: Sequence[Row]) -> list[Used]:
    found = [(user_id, _sum("", rows, 1)) for user_id, rows in _by(shares, "user_id").items()]
    found.sort(key=lambda item: (-item[1].read_tokens - item[1].completion_tokens, item[0]))
    names = User.objects.only("username").in_bulk([user_id for user_id, _ in found[:MAX_PEOPLE]])
    return [
        replace(used, name=names[user_id].get_username()) for user_id, used in found[:MAX_PEOPLE] if user_id in names
    ]


def _times(period: Period) -> list[Any]:
    return _rows(_TIMES, since=period.since, most=TIMED_ANSWERS)


def _failures(period: Period) -> list[Any]:
    return _rows(_FAILURES, since=period.since, most=EXAMINED_ANSWERS, codes=MAX_CODES)


def _opinions(period: Period) -> list[Any]:
    """(model, rating, reason, how often) of those given, or last changed, in the period."""
    return _rows(_OPINIONS, since=period.since, most=READ_OPINIONS)


def _reasons(opinions: list[Any]) -> list[tuple[str, int]]:
    with translation.override("en"):  # as the page is
        words = {str(value): str(label) for value, label in Feedback.Reason.choices}
    found: Counter[str] = Counter()
    for _model, rating, reason, number in opinions:
        if rating == Feedback.Rating.BAD:
            found[words.get(reason, "No reason given")] += number
    return found.most_common()


def _ledger(period: Period) -> QuerySet[UsageDay]:
    return UsageDay.objects.filter(day__gte=period.first, day__lte=period.last).order_by()


def _rows(query: str, **values: datetime.datetime | int) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(query, values)
        return list(cursor.fetchall())


def _sums() -> dict[str, Sum]:
    return {name: Sum(name) for name in SUMMED}


def _by(rows: Iterable[Row], column: str) -> dict[Any, list[Row]]:
    found: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        found[row[column]].append(row)
    return found


def _most_used(found: dict[str, list[Row]]) -> list[tuple[str, list[Row]]]:
    """By name, the ones with the most answers first."""
    return sorted(found.items(), key=lambda item: (-sum(row["num_answers"] for row in item[1]), item[0]))


def _sum(name: str, rows: Sequence[Row], num_people: int, ratings: tuple[int, int] = (0, 0)) -> Used:
    sums = {column: sum(row[column] for row in rows) for column in SUMMED}
    return Used(name, num_people, **sums, num_good=ratings[0], num_bad=ratings[1])


def _ratings(opinions: Iterable[Any]) -> tuple[int, int]:
    """(good, bad)"""
    found: Counter[int] = Counter()
    for _model, rating, _reason, number in opinions:
        found[rating] += number
    return found[Feedback.Rating.GOOD], found[Feedback.Rating.BAD]


def _percent(part: int, whole: int) -> float | None:
    return 100 * part / whole if whole else None
