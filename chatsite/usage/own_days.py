"""The day of a person's own quota: in their time zone, and so that no change of the zone brings tokens twice.

A day begins with the first answer that ends in it, and its end is fixed then. Only when it is over is the zone asked
again. Days go forward alone: who moves west has a longer day, who moves east the next one sooner. Choosing one zone
after another brings at most what a journey around the world would. Called by `ledger` and `quotas`.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from uuid import UUID

from django.db import connection

from chatsite.usage.calendar import begin_of
from chatsite.usage.models import OwnDay

_ADD = """
INSERT INTO usage_ownday (user_id, day, begun_at, ends_at, charged_tokens) VALUES (%s, %s, %s, %s, %s)
ON CONFLICT (user_id, day) DO UPDATE SET charged_tokens = usage_ownday.charged_tokens + excluded.charged_tokens,
    ends_at = greatest(usage_ownday.ends_at, excluded.ends_at)
"""


@dataclass(frozen=True)
class Day:
    """`ends_at` is when the next one begins."""

    day: datetime.date
    begun_at: datetime.datetime
    ends_at: datetime.datetime


def day_at(user_id: UUID, moment: datetime.datetime, zone: datetime.tzinfo) -> Day:
    """The person's day at `moment`, which may lie before what is known; `zone` is theirs now."""
    fresh = _fresh(moment, zone)
    rows = OwnDay.objects.filter(user=user_id)
    begun = rows.filter(begun_at__lte=moment).order_by("-day").first()
    if begun is None:
        return fresh
    if moment < begun.ends_at:
        return Day(begun.day, begun.begun_at, begun.ends_at)
    if fresh.day > begun.day:
        return Day(fresh.day, max(fresh.begun_at, begun.ends_at), fresh.ends_at)
    return Day(begun.day, begun.begun_at, begin_of(begun.day + datetime.timedelta(days=1), zone))


def add(user_id: UUID, day: Day, charged_tokens: int) -> None:
    """In the caller's transaction."""
    with connection.cursor() as cursor:
        cursor.execute(_ADD, [user_id, day.day, day.begun_at, day.ends_at, charged_tokens])


def _fresh(moment: datetime.datetime, zone: datetime.tzinfo) -> Day:
    day = moment.astimezone(zone).date()
    return Day(day, begin_of(day, zone), begin_of(day + datetime.timedelta(days=1), zone))
