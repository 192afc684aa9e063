"""Days and months: local ones, from one midnight to the next, however long that is; in TIME_ZONE or another zone.

Pure functions of a moment. Called by `ledger`, `own_days`, `quotas` and the page of one's own usage.
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
    resets_at: datetime.datetime  # when the next one begins, in the zone of whoever reads it


def day_of(moment: datetime.datetime) -> datetime.date:
    return timezone.localdate(moment, timezone.get_default_timezone())


def window(scope: Scope, now: datetime.datetime) -> Window:
    """In TIME_ZONE."""
    today = day_of(now)
    if scope is Scope.DAY:
        return Window(scope, today, begin_of(today + datetime.timedelta(days=1)))
    return month_of(today, timezone.get_default_timezone())


def month_of(day: datetime.date, zone: datetime.tzinfo) -> Window:
    """The month that a day of this zone lies in."""
    first = day.replace(day=1)
    return Window(Scope.MONTH, first, begin_of((first + datetime.timedelta(days=31)).replace(day=1), zone))


def seconds_until(moment: datetime.datetime, now: datetime.datetime) -> int:
    """Whole seconds from `now`, rounded up, at least 1. Real ones: clocks may be put forward or back meanwhile."""
    between = moment.astimezone(datetime.UTC) - now.astimezone(datetime.UTC)
    return max(1, -(-between // datetime.timedelta(seconds=1)))


def begin_of(day: datetime.date, zone: datetime.tzinfo | None = None) -> datetime.datetime:
    """Its first moment, in TIME_ZONE where no zone is named. Where the clocks skip midnight that is when they do, and
    it shows as 01:00."""
    zone = zone or timezone.get_default_timezone()
    return datetime.datetime.combine(day, datetime.time.min, zone).astimezone(datetime.UTC).astimezone(zone)
