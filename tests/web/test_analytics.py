"""Analytics: the numbers are those of the ledger, nobody sees them without the permission, and no text is in them.

olga is an operator and no staff; alice and bob ask. `SECRET` stands in every text.
"""

from __future__ import annotations

import csv
import datetime
import io
from typing import Any

import pytest
from django.conf import LazySettings
from django.contrib.auth.models import Group, Permission
from django.db import DatabaseError, connection
from django.test import Client
from django.utils import timezone

from chatsite.accounts.models import User
from chatsite.audit.models import AuditEntry
from chatsite.chat.models import Conversation, Feedback, Generation, Message
from chatsite.ops import analytics, charts
from chatsite.ops.analytics import Period, report
from chatsite.usage.models import UsageDay

PAGE = "/ops/analytics/"
FILE = "/ops/analytics/days.csv"
SECRET = "xyzzy-plugh"

pytestmark = pytest.mark.django_db


@pytest.fixture
def alice() -> User:
    return User.objects.create_user("alice")


@pytest.fixture
def bob() -> User:
    return User.objects.create_user("bob")


@pytest.fixture
def olga() -> User:
    olga = User.objects.create_user("olga")
    olga.user_permissions.add(Permission.objects.get(codename="view_analytics"))
    return olga


@pytest.fixture
def operator(olga: User) -> Client:
    client = Client()
    client.force_login(olga)
    return client


def used(user: User, days_ago: int = 0, **values: Any) -> UsageDay:
    day = timezone.localdate() - datetime.timedelta(days=days_ago)
    return UsageDay.objects.create(user=user, day=day, **{"model": "small", "source": "chat", **values})


def answered(user: User, days_ago: float = 0, **values: Any) -> Generation:
    """An answer that has ended so long ago, with `seconds` from the question to its end."""
    now = timezone.now()
    ended_at = now - datetime.timedelta(days=days_ago)
    conversation = Conversation.objects.create(owner=user, title=SECRET, system_prompt=SECRET)
    message = Message.objects.create(conversation=conversation, role="assistant", content=SECRET, reasoning=SECRET)
    seconds = values.pop("seconds", 0)
    generation = Generation.objects.create(
        user=user, message=message, ended_at=ended_at, **{"model": "small", "status": "done", **values}
    )
    Generation.objects.filter(pk=generation.pk).update(created_at=ended_at - datetime.timedelta(seconds=seconds))
    return generation


def thought(generation: Generation, rating: int, days_ago: float = 0, **values: Any) -> None:
    assert generation.message is not None
    row = Feedback.objects.create(message=generation.message, rating=rating, comment=SECRET, **values)
    Feedback.objects.filter(pk=row.pk).update(created_at=timezone.now() - datetime.timedelta(days=days_ago))


def week() -> Period:
    return Period.of("7")


# -- who


def test_it_is_for_whoever_has_the_permission_and_nobody_else(operator: Client, alice: User) -> None:
    staff = User.objects.create_user("sam", is_staff=True)
    gone = User.objects.create_user("gone", is_active=False)
    gone.user_permissions.add(Permission.objects.get(codename="view_analytics"))
    for path, method, other in ((PAGE, "get", "post"), (FILE, "post", "get")):
        assert getattr(operator, method)(path).status_code == 200
        assert getattr(operator, other)(path).status_code == 405
        assert getattr(Client(), method)(path).url == f"/accounts/login/?next={PAGE}"
        for user, status in ((alice, 403), (staff, 403), (gone, 302)):
            client = Client()
            client.force_login(user)
            assert getattr(client, method)(path).status_code == status, (path, user)
    assert AuditEntry.objects.filter(action="data.exported").count() == 1, "only the operator took anything"


def test_the_fleet_page_leads_there_for_operators_alone(operator: Client, olga: User, redis: Any) -> None:
    olga.user_permissions.add(Permission.objects.get(codename="view_fleet"))
    assert PAGE in operator.get("/ops/").content.decode()
    sam = Client()
    sam.force_login(User.objects.create_user("sam", is_staff=True))
    assert PAGE not in sam.get("/ops/").content.decode()


# -- the period


@pytest.mark.parametrize("days", [7, 30, 90])
def test_a_period_is_so_many_days_with_today(operator: Client, alice: User, days: int) -> None:
    used(alice, days - 1, num_answers=3)
    used(alice, days, num_answers=100)
    page = operator.get(PAGE, {"days": days})
    assert page.context["report"].total.num_answers == 3
    assert len(page.context["report"].days) == days
    assert [day.num_answers for day in page.context["report"].days] == [3] + [0] * (days - 1)


@pytest.mark.parametrize("asked", ["", "8", "-7", "7.0", "٧", "seven", "<b>", "9" * 500])
def test_a_period_that_is_none_is_refused_in_a_sentence(operator: Client, alice: User, asked: str) -> None:
    used(alice, num_answers=5)
    page = operator.get(PAGE, {"days": asked})
    assert page.status_code == 400
    assert "choose 7, 30 or 90." in page.content.decode()
    assert "“<b>" not in page.content.decode()
    assert (page.context["report"].period.days, page.context["report"].total.num_answers) == (30, 5)
    file = operator.post(FILE, {"days": asked})
    assert (file.status_code, file["Content-Type"]) == (400, "text/plain; charset=utf-8")
    assert not AuditEntry.objects.filter(action="data.exported").exists()


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Auckland", "America/Los_Angeles"])
def test_days_are_those_of_the_sites_time_zone(settings: LazySettings, alice: User, zone: str) -> None:
    settings.TIME_ZONE = zone
    timezone.get_default_timezone.cache_clear()
    try:
        period = week()
        assert period.last == timezone.localdate()
        assert period.since.date() == period.first
        assert (period.since.hour, str(period.since.tzinfo)) == (0, zone)
    finally:
        timezone.get_default_timezone.cache_clear()


# -- the numbers


def test_sums_are_those_of_the_ledger(alice: User, bob: User) -> None:
    both = {"prompt_tokens": 100, "cached_tokens": 40, "completion_tokens": 20, "decode_seconds": 2.0}
    used(alice, num_answers=10, num_failed=1, num_stopped=2, **both)
    used(alice, model="large", num_answers=5, **both)
    used(bob, 1, source="api", num_answers=5, num_failed=3, **both)
    used(bob, 1, source="temporary", num_answers=1)
    total = report(week()).total
    assert (total.num_people, total.num_answers, total.num_failed, total.num_stopped, total.num_done) == (
        2,
        21,
        4,
        2,
        15,
    )
    assert (total.read_tokens, total.cached_tokens, total.completion_tokens) == (180, 120, 60)
    assert (total.failed_percent, total.stopped_percent) == (pytest.approx(400 / 21), pytest.approx(200 / 21))

    *empty, yesterday, today = report(week()).days
    assert [day.num_answers for day in empty] == [0] * 5
    assert (yesterday.num_people, yesterday.num_answers, yesterday.num_failed) == (1, 6, 3)
    assert (today.num_people, today.num_answers, today.read_tokens) == (1, 15, 120)
    assert today.name == timezone.localdate().isoformat()

    models = {row.name: row for row in report(week()).models}
    assert {name: row.num_answers for name, row in models.items()} == {"small": 16, "large": 5}
    assert models["large"].tokens_per_second == 10.0
    sources = {row.name: (row.num_people, row.num_answers) for row in report(week()).sources}
    assert sources == {"Chat": (1, 15), "API": (1, 5), "Temporary chats": (1, 1)}


def test_nothing_used_is_no_share_and_no_speed(operator: Client) -> None:
    nothing = report(week()).total
    assert (nothing.num_answers, nothing.failed_percent, nothing.tokens_per_second, nothing.good_percent) == (
        0,
        None,
        None,
        None,
    )
    page = operator.get(PAGE).content.decode()
    assert "No answer has ended in this period." in page
    assert "Nobody in this period." in page


def test_whoever_is_in_two_groups_counts_in_both(alice: User, bob: User) -> None:
    red, blue = Group.objects.create(name="red"), Group.objects.create(name="blue")
    alice.groups.add(red, blue)
    carol = User.objects.create_user("carol")
    carol.groups.add(red)
    for user, number in ((alice, 1), (bob, 10), (carol, 100)):
        used(user, num_answers=number)
    found = {row.name: (row.num_people, row.num_answers) for row in report(week()).groups}
    assert found == {"red": (2, 101), "blue": (1, 1), "in no group": (1, 10)}


def test_the_twenty_people_with_the_most_tokens_are_named_in_order(operator: Client) -> None:
    people = [User.objects.create_user(f"person-{number:02}") for number in range(25)]
    for number, user in enumerate(people):
        used(user, prompt_tokens=1_000, cached_tokens=1_000 - number, num_answers=1)
        used(user, 1, completion_tokens=number)
    top = report(week()).people
    assert [row.name for row in top] == [f"person-{number:02}" for number in range(24, 4, -1)]
    assert (top[0].read_tokens, top[0].completion_tokens) == (24, 24)
    page = operator.get(PAGE).content.decode()
    assert "person-24" in page
    assert "person-04" not in page


def test_failures_are_counted_by_code(alice: User) -> None:
    for code, days_ago in (("worker_lost", 0), ("worker_lost", 1), ("timeout", 2), ("", 3), ("timeout", 8)):
        answered(alice, days_ago, status="failed", error_code=code)
    answered(alice, 0, status="done")
    assert report(week()).failures == [("worker_lost", 2), ("not known", 1), ("timeout", 1)]


def test_waiting_is_from_the_question_to_the_first_token(alice: User) -> None:
    for wait in range(1, 101):
        answered(alice, seconds=wait + 5, decode_seconds=5.0)
    answered(alice, model="large", seconds=1, decode_seconds=9.0)  # clocks of two machines
    answered(alice, status="failed", seconds=10_000)
    answered(alice, source="title", seconds=10_000)
    answered(alice, 8, seconds=10_000)
    small, large = report(week()).times
    assert (small.model, small.num_answers) == ("small", 100)
    assert (small.median, small.most) == (pytest.approx(50.5), pytest.approx(95.05))
    assert (large.model, large.median, large.most) == ("large", 0.0, 0.0)


def test_failures_are_those_of_the_newest_answers_when_there_are_many(
    alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(analytics, "EXAMINED_ANSWERS", 3)
    for number in range(6):
        answered(alice, number / 10, status="failed", error_code="timeout")
    assert report(week()).failures == [("timeout", 3)]


def test_a_report_takes_the_same_queries_however_much_there_is(
    alice: User, bob: User, django_assert_num_queries: Any
) -> None:
    for user in (alice, bob):
        user.groups.add(Group.objects.create(name=user.username))
        for model in ("small", "large"):
            used(user, model=model, num_answers=1)
            thought(answered(user, model=model), -1)
    with django_assert_num_queries(8):
        report(week())


def test_waiting_is_of_the_newest_answers_when_there_are_many(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analytics, "TIMED_ANSWERS", 3)
    for number in range(6):
        answered(alice, number / 10, seconds=number)
    (found,) = report(week()).times
    assert (found.num_answers, found.median) == (3, pytest.approx(1.0))


def test_opinions_are_by_model_and_bad_ones_by_reason(alice: User, bob: User) -> None:
    used(alice, num_answers=3)
    thought(answered(alice), 1)
    thought(answered(alice), 1)
    thought(answered(bob), -1, reason="wrong")
    thought(answered(bob, model="large"), -1, reason="wrong")
    thought(answered(bob, model="large"), -1, 3)
    thought(answered(bob, model="large"), -1, 8, reason="style")
    found = {row.name: (row.num_answers, row.num_good, row.num_bad) for row in report(week()).models}
    assert found == {"small": (3, 2, 1), "large": (0, 0, 2)}
    assert report(week()).reasons == [("Not correct", 2), ("No reason given", 1)]
    total = report(week()).total
    assert (total.num_good, total.num_bad, total.good_percent) == (2, 3, 40.0)


def test_no_text_and_no_title_is_anywhere(operator: Client, alice: User) -> None:
    used(alice, num_answers=2)
    thought(answered(alice), -1)
    answered(alice, status="failed", error_code="timeout", error_message=SECRET)
    for answer in (operator.get(PAGE), operator.post(FILE)):
        assert answer.status_code == 200
        assert SECRET not in answer.content.decode()
        assert "no-store" in answer["Cache-Control"]


@pytest.mark.parametrize("language", ["en", "de"])
def test_bars_are_whole_numbers_without_style_or_script(operator: Client, alice: User, language: str) -> None:
    used(alice, num_answers=1_234_567, completion_tokens=7)
    page = operator.get(PAGE, headers={"accept-language": language}).content.decode()
    main = page[page.index("<main") : page.index("</main>")]
    assert "1,234,567" in main, "in English, as the page is"
    assert " style=" not in main
    assert "<script" not in main
    assert f"<title>{timezone.localdate()}: 1,234,567 done, 0 stopped, 0 failed</title>" in main


# -- bars


def heights(chart: charts.Chart) -> list[list[tuple[int, int]]]:
    return [[(part.y, part.height) for part in bar.parts] for bar in chart.bars]


def test_parts_stand_on_one_another_and_the_highest_fills_the_height() -> None:
    chart = charts.stacked("T", ["a", "b", "c"], [("One", [1, 0, 3]), ("Two", [1, 0, 1])])
    assert heights(chart) == [[(750, 250), (500, 250)], [], [(250, 750), (0, 250)]]
    assert (chart.top, chart.first, chart.last, chart.width) == (4, "a", "c", 30)
    assert chart.bars[0].words == "a: 1 one, 1 two"
    assert all(bar.x >= 0 and bar.x + chart.bar_width <= chart.width for bar in chart.bars)


def test_a_single_one_among_millions_is_seen() -> None:
    chart = charts.stacked("T", ["a", "b"], [("One", [1, 5_000_000]), ("Two", [0, 1])])
    assert heights(chart)[0] == [(999, 1)]
    lower, upper = heights(chart)[1]
    assert upper[1] >= 1
    assert upper[0] >= 0
    assert lower[0] == upper[0] + upper[1]


def test_nothing_at_all_has_no_bars() -> None:
    assert heights(charts.stacked("T", ["a", "b"], [("One", [0, 0])])) == [[], []]


# -- the file


def rows_of(response: Any) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(response.content.decode())))


def test_the_file_has_a_row_for_each_day_model_and_source(operator: Client, olga: User, alice: User, bob: User) -> None:
    used(alice, num_answers=2, prompt_tokens=9, cached_tokens=4, completion_tokens=3, decode_seconds=0.5)
    used(bob, num_answers=1, num_failed=1)
    used(bob, 3, source="api", num_answers=4, num_stopped=1)
    used(bob, 8, num_answers=100)
    response = operator.post(FILE, {"days": "7"})
    assert response["Content-Type"] == "text/csv; charset=utf-8"
    assert response["Content-Disposition"].startswith('attachment; filename="analytics ')
    earlier, today = rows_of(response)
    assert (earlier["source"], earlier["answers"], earlier["stopped"]) == ("api", "4", "1")
    assert today == {
        "day": timezone.localdate().isoformat(),
        "model": "small",
        "source": "chat",
        "people": "2",
        "answers": "3",
        "failed": "1",
        "stopped": "0",
        "tokens_read": "5",
        "tokens_cached": "4",
        "tokens_written": "3",
        "decode_seconds": "0.5",
    }
    entry = AuditEntry.objects.get(action="data.exported")
    assert (entry.actor, entry.target) == (olga, "analytics")
    assert entry.detail == {"first": week().first.isoformat(), "last": week().last.isoformat()}


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"])
def test_no_cell_is_a_formula(operator: Client, alice: User, name: str) -> None:
    used(alice, model=name)
    assert rows_of(operator.post(FILE))[0]["model"] == f"'{name}"


def test_without_a_record_there_is_no_file(operator: Client) -> None:
    """The trigger stands for any reason why an entry cannot be written."""
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$;"
            "CREATE TRIGGER refuse BEFORE INSERT ON audit_auditentry FOR EACH ROW EXECUTE FUNCTION refuse()"
        )
    with pytest.raises(DatabaseError):
        operator.post(FILE)
