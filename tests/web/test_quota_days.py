"""Days and months of quotas: where they begin, how long until the next, and what it brings."""

# ruff: noqa: F811  (fixtures are imported, then asked for by their names)

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import pytest
from django.utils import timezone

from chatsite.accounts.models import User
from chatsite.chat import errors
from chatsite.chat.generation import record
from chatsite.usage import calendar, words
from chatsite.usage.calendar import Scope
from inference.messages.generation import FinishReason
from tests.web.spending import BERLIN, at, limit, person, send, spend  # noqa: F401  (fixtures)


@pytest.mark.parametrize(
    ("zone", "now", "scope", "first_day", "resets_at"),
    [
        ("Asia/Tokyo", "2026-03-31T15:30", Scope.DAY, "2026-04-01", "2026-04-01T15:00"),
        ("Asia/Tokyo", "2026-03-31T15:30", Scope.MONTH, "2026-04-01", "2026-04-30T15:00"),
        ("Asia/Tokyo", "2026-03-31T14:30", Scope.MONTH, "2026-03-01", "2026-03-31T15:00"),
        ("America/New_York", "2026-12-31T04:59", Scope.DAY, "2026-12-30", "2026-12-31T05:00"),
        ("America/New_York", "2026-12-31T04:59", Scope.MONTH, "2026-12-01", "2027-01-01T05:00"),
        ("UTC", "2028-02-29T23:59", Scope.MONTH, "2028-02-01", "2028-03-01T00:00"),
        ("UTC", "2026-01-31T00:00", Scope.MONTH, "2026-01-01", "2026-02-01T00:00"),
        ("Europe/Berlin", "2026-03-28T23:30", Scope.DAY, "2026-03-29", "2026-03-29T22:00"),  # 23 hours
        ("Europe/Berlin", "2026-10-24T22:30", Scope.DAY, "2026-10-25", "2026-10-25T23:00"),  # 25 hours
        ("Africa/Cairo", "2026-04-23T20:00", Scope.DAY, "2026-04-23", "2026-04-23T22:00"),  # no midnight follows
    ],
)
def test_a_window_is_a_local_day_or_month_however_long(
    settings: Any, zone: str, now: str, scope: Scope, first_day: str, resets_at: str
) -> None:
    settings.TIME_ZONE = zone
    moment = datetime.datetime.fromisoformat(now).replace(tzinfo=datetime.UTC)
    found = calendar.window(scope, moment)
    assert found.first_day.isoformat() == first_day
    assert found.resets_at.astimezone(datetime.UTC).isoformat() == resets_at + ":00+00:00"
    assert calendar.window(scope, found.resets_at).first_day > found.first_day
    just_before = found.resets_at.astimezone(datetime.UTC) - datetime.timedelta(seconds=1)
    assert calendar.window(scope, just_before).first_day == found.first_day


def test_waiting_is_told_in_real_hours_on_days_when_clocks_change(settings: Any) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    for day, hours in ((28, 24), (29, 23), (25, 25)):
        morning = datetime.datetime(2026, 10 if day == 25 else 3, day, tzinfo=BERLIN)
        seconds = calendar.seconds_until(calendar.window(Scope.DAY, morning).resets_at, morning)
        assert seconds == hours * 3600


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (1, "1 min"),
        (61, "2 min"),
        (3600, "1 h 0 min"),
        (18_720, "5 h 12 min"),
        (86_399, "1 d 0 h"),
        (277_200, "3 d 5 h"),
    ],
)
def test_waiting_in_words(seconds: int, said: str) -> None:
    assert words.wait(seconds) == said


def test_a_new_day_brings_new_tokens_and_a_new_month_those_of_the_month(
    person: User, at: Callable[..., datetime.datetime]
) -> None:
    limit(person, tokens_per_day=1_000, tokens_per_month=1_500)
    spend(person, 1_000, at=at(2026, 3, 28, 23, 50))
    with pytest.raises(errors.QuotaExceeded) as refused:
        send(person)
    assert (refused.value.facts["scope"], refused.value.facts["retry_after_seconds"]) == ("day", 600)
    at(2026, 3, 29, 0, 0)
    generation = send(person)
    assert generation.reserved_tokens == 500
    record.end_without_log(generation.pk, FinishReason.CANCELLED)
    spend(person, 500, at=at(2026, 3, 29, 12, 0))
    with pytest.raises(errors.QuotaExceeded) as refused:
        send(person)
    assert refused.value.facts["scope"] == "month"
    assert refused.value.facts["reset_at"] == "2026-04-01T00:00:00+02:00"
    assert refused.value.message == (
        "You have used your 1,500 tokens of this month. New ones come on April 1 (in 2 d 12 h)."
    )
    at(2026, 4, 1, 0, 0)
    assert send(person).reserved_tokens == 600


def test_of_two_quotas_that_are_full_the_later_reset_is_named(person: User) -> None:
    limit(person, tokens_per_day=100, tokens_per_month=100)
    spend(person, 100)
    with pytest.raises(errors.QuotaExceeded) as refused:
        send(person)
    month = calendar.window(Scope.MONTH, timezone.now())
    assert refused.value.facts["scope"] == (
        "month" if month.resets_at > calendar.window(Scope.DAY, timezone.now()).resets_at else "day"
    )
