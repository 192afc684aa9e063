"""The page of one's own usage: what is left, what was used, and nobody else's."""

from __future__ import annotations

import csv
import datetime
import io
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import transaction
from django.test import Client
from django.utils import timezone, translation

from chatsite.accounts.models import ApiKey, User
from chatsite.chat.actions import send
from chatsite.rules.models import GroupRules, UserRules
from chatsite.usage import drawing, ledger, summary
from chatsite.usage.models import UsageDay
from tests.web.test_pages import signed_in

PAGE, CSV = "/account/usage/", "/account/usage/usage.csv"
TODAY = datetime.date(2026, 11, 25)  # a Wednesday


def use(user: User, days_ago: int = 0, *, today: datetime.date | None = None, **facts: Any) -> None:
    """An answer that read 100 tokens, 40 of them cached, and wrote 30 in 2 s: 90 count."""
    noon = datetime.datetime.combine(today or timezone.localdate(), datetime.time(12), datetime.UTC)
    facts = {
        **{"model": "smollm3-3b", "source": "chat", "prompt_tokens": 100, "cached_tokens": 40},
        **{"completion_tokens": 30, "decode_seconds": 2.0},
        **facts,
    }
    with transaction.atomic():
        ledger.add(ledger.Entry(user_id=user.pk, ended_at=noon - datetime.timedelta(days=days_ago), **facts))


def words(client: Client) -> str:
    """The page's text, each run of white space as one space."""
    response = client.get(PAGE)
    assert response.status_code == 200
    main = response.content.decode().split("<main", 1)[1].split("</main>")[0]
    return " ".join(re.sub(r"<[^>]+>", " ", main).split())


def test_who_has_used_nothing_is_told_so(alice: User) -> None:
    text = words(signed_in(alice))
    assert text.count("No limit") == 2
    assert "You have used nothing yet." in text


def test_what_is_left_has_numbers_a_reset_and_a_meter(
    alice: User, site: Callable[..., None], conversation: Any, settings: Any
) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    UserRules.objects.create(user=alice, tokens_per_day=10_000)
    group = Group.objects.create(name="Physics <i>")
    GroupRules.objects.create(group=group, pool_per_month=50_000)
    alice.groups.add(group)
    for _ in range(20):
        use(alice)
    site(max_completion_tokens=600)
    send.send_message(alice, conversation, "hi")
    client = signed_in(alice)
    text = words(client)
    assert "7,600 of 10,000 tokens are left; new ones come at 00:00." in text
    assert "1,800 used, 600 held for answers under way" in text
    assert "The group Physics &lt;i&gt;, this month" in text
    assert "47,600 of 50,000 tokens are left; new ones come on " in text
    page = client.get(PAGE).content.decode()
    assert '<meter min="0" max="10000" value="7600" low="1000" optimum="10000"' in page


def test_sums_are_told_by_time_model_source_and_key(alice: User) -> None:
    key, _secret = ApiKey.create(alice, "my program")
    nameless, _secret = ApiKey.create(alice)
    first = TODAY.replace(day=1)
    for days_ago in (0, 0, 1, 29, 30, (TODAY - first).days + 1):
        use(alice, days_ago, today=TODAY)
    use(alice, today=TODAY, source="title", model="small")
    use(alice, 3, today=TODAY, source="api", model="other", api_key_id=key.pk, is_failed=True, completion_tokens=0)
    use(alice, 3, today=TODAY, source="api", model="other", api_key_id=nameless.pk)
    use(alice, 4, today=TODAY, source="api", model="other")
    use(alice, 4, today=TODAY, source="temporary")
    found = summary.of(alice, TODAY)
    assert found.today == summary.Sums(2, 200, 80, 60, 180, 4.0)
    assert found.today.tokens_per_second == 15.0
    assert found.this_month.num_answers == 7
    assert found.recent.num_answers == 9
    assert [(name, sums.num_answers) for name, sums in found.models] == [("smollm3-3b", 6), ("other", 3)]
    assert [(name, sums.num_answers, sums.charged_tokens) for name, sums in found.sources] == [
        ("chat", 5, 450),
        ("api", 3, 240),
        ("temporary", 1, 90),
        ("title", 1, 0),
    ]
    assert [(name, sums.charged_tokens) for name, sums in found.keys] == [
        ("", 90),
        (f"{nameless.shown}…", 90),
        ("my program", 60),
    ]


def test_the_page_names_models_sources_and_keys_and_counts_conversations(alice: User, conversation: Any) -> None:
    key, _secret = ApiKey.create(alice, "<b>my program")
    use(alice, source="api", api_key_id=key.pk)
    use(alice, source="temporary")
    text = words(signed_in(alice))
    for expected in ("smollm3-3b", "Temporary chats", "API", "&lt;b&gt;my program", "You have 1 conversation."):
        assert expected in text
    assert "Today 2 200 80 60 180 15.0" in text


@pytest.mark.parametrize("day", [TODAY, datetime.date(2026, 11, 23), datetime.date(2026, 11, 29)])
def test_the_heat_map_has_whole_weeks_up_to_today_and_shades_by_the_fullest_day(
    alice: User, day: datetime.date
) -> None:
    for days_ago, times in ((0, 4), (1, 1), (150, 2), (200, 9)):
        for _ in range(times):
            use(alice, days_ago, today=day)
    use(alice, 2, today=day, source="title")
    heat = summary.of(alice, day).heat
    assert len(heat.weeks) == 26
    assert all(len(week) == 7 and week[0].day.weekday() == 0 for week in heat.weeks[:-1])
    assert heat.weeks[-1][-1].day == day
    assert [(square.tokens, square.shade) for square in heat.busy] == [(360, 4), (90, 1), (180, 2)]
    assert heat.fullest is not None
    assert heat.fullest.day == day
    drawn = drawing.drawn(heat)
    assert len(drawn.cells) == sum(map(len, heat.weeks))
    assert all(cell.x + drawn.side <= drawn.width and cell.y + drawn.side <= drawn.height for cell in drawn.cells)
    assert len({(cell.x, cell.y) for cell in drawn.cells}) == len(drawn.cells)
    assert 5 <= len(drawn.months) <= 7


def test_the_heat_map_is_said_in_words_and_as_a_table(alice: User) -> None:
    for days_ago in (0, 1, 1):
        use(alice, days_ago)
    page = signed_in(alice).get(PAGE).content.decode()
    assert 'role="img" aria-labelledby="heat-words"' in page
    text = words(signed_in(alice))
    assert re.search(r"In the last 26 weeks 2 days with answers; the most on [^;]+: 180 tokens\.", text)
    assert "Tokens that count" in text
    with translation.override("de"):
        assert "," not in "".join(re.findall(r'fill-opacity="([^"]*)"', signed_in(alice).get(PAGE).content.decode()))


def test_rows_can_be_taken_along_and_no_cell_is_a_formula(alice: User, bob: User) -> None:
    key, _secret = ApiKey.create(alice, "key")
    use(alice, 1, model="=HYPERLINK(1)")
    use(alice, source="api", api_key_id=key.pk, is_stopped=True)
    use(bob)
    response = signed_in(alice).get(CSV)
    assert response["Content-Type"] == "text/csv; charset=utf-8"
    assert re.fullmatch(r'attachment; filename="usage-\d{4}-\d\d-\d\d\.csv"', response["Content-Disposition"])
    assert "no-store" in response["Cache-Control"]
    rows = list(csv.DictReader(io.StringIO(response.content.decode())))
    assert [(row["model"], row["source"], row["api_key"]) for row in rows] == [
        ("smollm3-3b", "api", f"{key.shown}… key"),
        ("'=HYPERLINK(1)", "chat", ""),
    ]
    assert (rows[0]["num_answers"], rows[0]["num_stopped"], rows[0]["charged_tokens"]) == ("1", "1", "90")


def test_nobody_sees_the_usage_of_others(alice: User, bob: User, sam: User) -> None:
    use(alice, model="only-alices")
    for user in (bob, sam):
        assert "only-alices" not in words(signed_in(user))
        assert "only-alices" not in signed_in(user).get(CSV).content.decode()


@pytest.mark.parametrize("path", [PAGE, CSV])
def test_it_asks_for_a_sign_in_and_is_to_read_alone(path: str, alice: User) -> None:
    response = Client().get(path)
    assert (response.status_code, response["Location"].partition("?")[0]) == (302, "/accounts/login/")
    for method in ("post", "put", "delete"):
        assert getattr(signed_in(alice), method)(path).status_code == 405


def test_staff_read_the_ledger_in_the_admin_and_change_nothing(alice: User, bob: User, sam: User) -> None:
    use(alice, model="first")
    use(bob, model="second", source="api")
    client = signed_in(sam)
    listed = "/admin/usage/usageday/"
    page = client.get(listed).content.decode()
    assert "first" in page
    assert "second" in page
    for query, shown, hidden in (
        ("source=api", "second", "first"),
        ("q=alice", "first", "second"),
        ("q=second", "second", "first"),
        (f"day__gte={timezone.localdate()}&day__lt={timezone.localdate()}", "", "first"),
    ):
        found = client.get(f"{listed}?{query}")
        assert found.status_code == 200, query
        rows = found.content.decode().partition('id="result_list"')[2]
        assert (not shown or shown in rows, hidden in rows) == (True, False), query
    row = UsageDay.objects.first()
    assert row is not None
    assert client.get(f"{listed}add/").status_code == 403
    assert client.post(f"{listed}{row.pk}/delete/", {"post": "yes"}).status_code == 403
    assert signed_in(bob).get(listed).status_code == 302
