"""Days are those of whoever looks: in the list, in what a model is told, in files, and in their own quota."""

# ruff: noqa: F811  (fixtures are imported, then asked for by their names)

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.test import Client
from django.utils import timezone

from chatsite.accounts import time_zones
from chatsite.accounts.models import User
from chatsite.api import completion
from chatsite.chat import errors
from chatsite.chat.actions import send as actions_send
from chatsite.chat.generation import record
from chatsite.chat.models import Conversation, Generation
from chatsite.chat.streams import follow
from chatsite.chat.tools import search_chats
from chatsite.chat.tools import time as clock
from chatsite.transfer import reading, writing
from chatsite.usage import own_days, quotas
from chatsite.usage.models import OwnDay, UsageDay
from inference.messages.generation import FinishReason
from tests.web.api_worker import kit
from tests.web.chat_worker import StepWorker
from tests.web.spending import body, limit, person, send, spend  # noqa: F401  (fixtures)

FAR_EAST = "Pacific/Kiritimati"  # UTC+14
FAR_WEST = "Pacific/Pago_Pago"  # UTC-11


@pytest.fixture
def noon(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make it another time, in UTC; at first 17:00 of a day."""

    def set_clock(day: int, hour: int, minute: int = 0) -> datetime.datetime:
        now = datetime.datetime(2026, 3, day, hour, minute, tzinfo=datetime.UTC)
        monkeypatch.setattr(timezone, "now", lambda: now)
        return now

    set_clock(10, 17)
    return set_clock


def groups(owner: Client) -> list[str]:
    page = owner.get("/chat/sidebar/", headers={"HX-Request": "true"}).content.decode()
    return [name for name in ("Today", "Yesterday", "Last week") if name in page]


def updated(user: User, day: int, hour: int) -> Conversation:
    conversation = Conversation.objects.create(owner=user, title="x")
    at = datetime.datetime(2026, 3, day, hour, tzinfo=datetime.UTC)
    Conversation.objects.filter(pk=conversation.pk).update(updated_at=at, created_at=at)
    conversation.refresh_from_db()
    return conversation


def test_the_list_has_the_days_of_the_browser(owner: Client, alice: User, noon: Any) -> None:
    updated(alice, 10, 9)  # 23:00 there, of a day that is over at 17:00 UTC
    assert groups(owner) == ["Today"]
    owner.cookies[time_zones.COOKIE] = FAR_EAST
    assert groups(owner) == ["Yesterday"]
    updated(alice, 10, 11)
    assert groups(owner) == ["Today", "Yesterday"]
    alice.refresh_from_db()
    assert (alice.browser_time_zone, alice.time_zone) == (FAR_EAST, "")


@pytest.mark.parametrize("forged", ["Mars/Olympus", "../../etc/passwd", "x" * 5_000, "", "\u00e9", "posixrules"])
def test_a_forged_zone_is_ignored(owner: Client, alice: User, noon: Any, forged: str) -> None:
    updated(alice, 10, 9)
    owner.cookies[time_zones.COOKIE] = forged
    assert groups(owner) == ["Today"]
    alice.refresh_from_db()
    assert alice.browser_time_zone == ""
    alice.time_zone = forged[:64]
    assert time_zones.zone_of(alice) == timezone.get_default_timezone()


def test_a_chosen_zone_goes_before_the_browsers(owner: Client, alice: User, noon: Any) -> None:
    updated(alice, 10, 9)
    owner.cookies[time_zones.COOKIE] = "Europe/Berlin"
    page = owner.get("/account/time-zone/").content.decode()
    assert "Same as this browser" in page and "2026-03-10 18:00 now (Europe/Berlin)" in page
    assert owner.post("/account/time-zone/", {"zone": FAR_EAST}).status_code == 302
    assert groups(owner) == ["Yesterday"]
    assert f"<option selected>{FAR_EAST}" in owner.get("/account/time-zone/").content.decode()
    refused = owner.post("/account/time-zone/", {"zone": "<b>Mars"})
    assert refused.status_code == 400 and "“&lt;b&gt;Mars”" in refused.content.decode()
    assert groups(owner) == ["Yesterday"]
    owner.post("/account/time-zone/", {"zone": ""})
    assert groups(owner) == ["Today"]
    assert Client().get("/account/time-zone/").status_code == 302


def test_the_model_is_told_the_day_of_whoever_asks(alice: User, noon: Any) -> None:
    assert actions_send.start_conversation(alice).prompt_date == datetime.date(2026, 3, 10)
    time_zones.choose(alice, FAR_EAST)
    assert actions_send.start_conversation(alice).prompt_date == datetime.date(2026, 3, 11)
    assert clock.run(alice, clock.Arguments()) == "Wednesday, 2026-03-11 07:00:00 +14 (UTC+1400)"
    assert clock.run(alice, clock.Arguments(zone="UTC")).startswith("Tuesday, 2026-03-10 17:00:00 UTC")
    conversation = updated(alice, 10, 17)
    Conversation.objects.filter(pk=conversation.pk).update(title="lighthouse")
    assert search_chats.run(alice, search_chats.Arguments(query="lighthouse")).startswith("2026-03-11")


def test_a_stream_tells_the_end_of_an_answer_with_the_day_of_whoever_looks(
    alice: User, conversation: Conversation, noon: Any
) -> None:
    sent = actions_send.send_message(alice, conversation, "question")
    record.end_without_log(sent.generation.pk, FinishReason.CANCELLED)
    row = Generation.objects.get(pk=sent.generation.pk)
    assert "10 Mar" in follow._end_of(row, "en")["html"]
    time_zones.choose(alice, FAR_EAST)
    assert "11 Mar" in follow._end_of(row, "en")["html"]


def test_a_program_is_told_the_day_of_whose_key_it_uses(
    person: User, worker: StepWorker, noon: Any, site: Callable[..., None]
) -> None:
    worker.announce(kit=kit().to_bytes())
    time_zones.choose(person, FAR_EAST)
    completion.admit(person, body())
    assert worker.claim().claim.request.date == "2026-03-11"


def test_files_that_are_taken_away_have_the_readers_day(owner: Client, alice: User, noon: Any) -> None:
    conversation = updated(alice, 10, 17)
    owner.cookies[time_zones.COOKIE] = FAR_EAST
    assert "*2026-03-11*" in owner.get(f"/chat/{conversation.pk}/export/md/").content.decode()
    assert "2026-03-11" in owner.get(f"/chat/{conversation.pk}/export/html/").content.decode()
    with timezone.override(ZoneInfo(FAR_WEST)):
        assert "*2026-03-10*" in writing.written(reading.record_of(conversation), "md").decode()


def test_the_day_of_ones_quota_begins_at_ones_own_midnight(person: User, noon: Any) -> None:
    time_zones.choose(person, FAR_EAST)
    limit(person, tokens_per_day=1_000)
    noon(10, 9, 30)
    spend(person, 1_000)
    with pytest.raises(errors.QuotaExceeded) as refused:
        send(person)
    assert refused.value.facts["reset_at"] == "2026-03-11T00:00:00+14:00"
    assert refused.value.facts["retry_after_seconds"] == 1_800
    noon(10, 10)
    assert send(person).reserved_tokens
    assert UsageDay.objects.get().day == datetime.date(2026, 3, 10)  # the ledger's days are the site's


def test_no_change_of_the_zone_brings_tokens_of_another_day(person: User, noon: Any) -> None:
    limit(person, tokens_per_day=1_000)
    spend(person, 1_000)
    for name in (FAR_EAST, FAR_WEST, "Europe/Berlin", FAR_EAST, "UTC", ""):
        time_zones.choose(person, name)
        assert quotas.standing(person).day.left == 0
    time_zones.choose(person, FAR_EAST)
    noon(11, 0)  # the day that had begun is over where it began
    assert quotas.standing(person).day.left == 1_000
    spend(person, 1_000)
    for name in ("UTC", FAR_WEST, FAR_EAST):
        time_zones.choose(person, name)
        assert quotas.standing(person).day.left == 0
    time_zones.choose(person, FAR_WEST)
    noon(11, 10)  # its end was fixed in the east; in the west it is still the day before, and nothing is new
    assert quotas.standing(person).day.left == 0
    assert [row.day.day for row in OwnDay.objects.order_by("day")] == [10, 11]


def test_flipping_zones_every_hour_brings_no_more_days_than_a_journey_around_the_world(person: User, noon: Any) -> None:
    limit(person, tokens_per_day=100)
    names = (FAR_EAST, FAR_WEST, "UTC", "Asia/Kathmandu", "America/New_York")
    granted = 0
    for hour in range(0, 4 * 24, 2):
        noon(1 + hour // 24, hour % 24)
        for name in (names[hour // 2 % 5], names[hour * 3 % 5]):
            time_zones.choose(person, name)
            if (left := quotas.standing(person).day.left or 0) > 0:
                spend(person, left)
                granted += 1
    assert 4 <= granted <= 4 + 2


@pytest.mark.parametrize("name", ["UTC", FAR_EAST, FAR_WEST, "Europe/Berlin"])
def test_days_without_a_change_are_local_days(person: User, noon: Any, name: str) -> None:
    zone = ZoneInfo(name)
    for hour in range(24, 24 * 12, 5):
        moment = noon(1 + hour // 24, hour % 24)
        day = own_days.day_at(person.pk, moment, zone)
        assert day.day == moment.astimezone(zone).date()
        assert day.begun_at <= moment < day.ends_at
        own_days.add(person.pk, day, 1)
    assert not [row for row in OwnDay.objects.all() if row.begun_at.astimezone(zone).time() != datetime.time()]


def test_an_answer_that_was_recorded_late_counts_on_its_own_day(person: User, noon: Any) -> None:
    spend(person, 5, at=datetime.datetime(2026, 3, 10, 12, tzinfo=datetime.UTC))
    spend(person, 7, at=datetime.datetime(2026, 3, 8, 12, tzinfo=datetime.UTC))
    spend(person, 9, at=datetime.datetime(2026, 3, 9, 12, tzinfo=datetime.UTC))
    assert [(row.day.day, row.charged_tokens) for row in OwnDay.objects.order_by("day")] == [(8, 7), (9, 9), (10, 5)]
    standing = quotas.standing(person)
    assert (standing.day.used, standing.month.used) == (5, 21)


def test_what_is_the_same_for_everybody_looks_at_nobodys_session(owner: Client) -> None:
    owner.cookies[time_zones.COOKIE] = FAR_EAST
    for address in ("/sw.js", "/offline/", "/manifest.webmanifest"):
        assert "Cookie" not in owner.get(address).get("Vary", "")


def test_the_page_of_ones_usage_says_which_days_are_the_sites(owner: Client, alice: User) -> None:
    spend(alice, 5)
    assert "Days and months of this list" not in owner.get("/account/usage/").content.decode()
    owner.cookies[time_zones.COOKIE] = FAR_EAST
    assert "Days and months of this list are in UTC" in owner.get("/account/usage/").content.decode()


def test_every_page_tells_the_browsers_zone() -> None:
    from django.contrib.staticfiles import finders

    found = finders.find("js/theme.js")
    assert isinstance(found, str)
    with open(found, encoding="utf-8") as file:
        assert f"{time_zones.COOKIE}=${{Intl.DateTimeFormat().resolvedOptions().timeZone}}" in file.read()
