"""Days and months of the ledger: local ones, in TIME_ZONE, from one midnight to the next, however long that is.

Pure functions of a moment. Called by `ledger`, `quotas` and the page of one's own usage.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from enum import StrEnum

from django.utils import timezone


class Scope(StrEnum):
    """Over what time tokens count together."""

    DAY = "day"
    MONTH = "month"


@dataclass(frozen=True)
class Window:
    """The day or month that a moment lies in."""

    scope: Scope
    first_day: datetime.date
    resets_at: datetime.datetime  # when the next one begins, in TIME_ZONE


def day_of(moment: datetime.datetime) -> datetime.date:
    return timezone.localdate(moment, timezone.get_default_timezone())


def window(scope: Scope, now: datetime.datetime) -> Window:
    today = day_of(now)
    if scope is Scope.DAY:
        return Window(scope, today, _begin_of(today + datetime.timedelta(days=1)))
    first = today.replace(day=1)
    return Window(scope, first, _begin_of((first + datetime.timedelta(days=31)).replace(day=1)))


def seconds_until(moment: datetime.datetime, now: datetime.datetime) -> int:
    """Whole seconds from `now`, rounded up, at least 1. Real ones: clocks may be put forward or back meanwhile."""
    between = moment.astimezone(datetime.UTC) - now.astimezone(datetime.UTC)
    return max(1, -(-between // datetime.timedelta(seconds=1)))


def _begin_of(day: datetime.date) -> datetime.datetime:
    """Its first moment. Where the clocks skip midnight that is when they do, and it shows as 01:00."""
    zone = timezone.get_default_timezone()
    return datetime.datetime.combine(day, datetime.time.min, zone).astimezone(datetime.UTC).astimezone(zone)
