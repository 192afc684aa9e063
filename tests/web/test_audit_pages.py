"""The pages of the audit log: the one that auditors read, its CSV, and what concerns oneself. rita audits."""

from __future__ import annotations

import csv
import datetime
import io
import itertools
import re
from typing import Any
from uuid import uuid4

import pytest
from channels.db import database_sync_to_async
from django.contrib.auth.models import Permission
from django.test import AsyncClient, Client

from chatsite.accounts.models import User
from chatsite.audit import log
from chatsite.audit.models import Action, AuditEntry
from chatsite.audit.origin import asked_by
from tests.web.auditing import ADDRESS, PASSWORD, World, sql

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("redis")]  # limits are counted in Valkey


@pytest.fixture
def rita() -> User:
    """An auditor who is no staff."""
    rita = User.objects.create_user("rita", password=PASSWORD)
    rita.user_permissions.add(Permission.objects.get(codename="view_auditentry"))
    return rita


def shown(client: Client, **asked: str) -> str:
    answer = client.get("/ops/audit/", asked)
    assert answer.status_code == 200
    return answer.content.decode()


@pytest.mark.parametrize("path", ["/ops/audit/", "/ops/audit/csv/"])
def test_only_auditors_open_the_log(world: World, rita: User, path: str) -> None:
    staff = User.objects.create_user("sam", is_staff=True)

    def status(user: User | None) -> int:
        client = world.browser(user)
        return (client.post(path) if "csv" in path else client.get(path)).status_code

    assert [status(user) for user in (None, world.alice, staff, rita, world.root)] == [302, 404, 403, 200, 200]
    refused = world.browser(world.root)
    assert (refused.get(path) if "csv" in path else refused.post(path)).status_code == 405


def test_reading_the_log_changes_nothing(world: World, rita: User) -> None:
    client = world.browser(rita)
    number = AuditEntry.objects.count()
    shown(client)
    client.get("/account/activity/")
    assert AuditEntry.objects.count() == number


def test_entries_are_found_by_person_deed_and_day(world: World, rita: User) -> None:
    client = world.browser(rita)
    log.record(Action.GROUP_CHANGED, actor=world.root, target="Careful group")
    log.record(Action.LINK_CREATED, actor=world.alice, target="Alice's link")
    log.record(Action.SIGN_IN_FAILED, subject_name="mallory")
    sql(
        "INSERT INTO audit_auditentry (id, at, action, actor_name, subject_name, target, detail)"
        " VALUES (%s, '2024-03-05 23:30+00', 'link.revoked', 'old', '', 'long ago', '{}')",
        uuid4(),
    )
    assert "Careful group" in shown(client) and "Alice&#x27;s link" in shown(client)
    page = shown(client, person="ALICE")
    assert "Alice&#x27;s link" in page and "Careful group" not in page and "mallory" not in page
    assert "mallory" in shown(client, person="mallory")
    assert "No entry found." in shown(client, person="ali")
    page = shown(client, action="group.changed")
    assert "Careful group" in page and "Alice&#x27;s link" not in page
    page = shown(client, since="2024-03-05", until="2024-03-05")
    assert "long ago" in page and "Careful group" not in page
    assert "long ago" not in shown(client, since="2024-03-06")
    assert "long ago" not in shown(client, until="2024-03-04")
    assert "long ago" in shown(client, since="0001-01-01", until="9999-12-31")
    world.alice.username = "alicia"
    world.alice.save()
    assert "Alice&#x27;s link" in shown(client, person="alicia"), "an account is found by its name of today"
    world.alice.delete()
    pseudonym = AuditEntry.objects.get(target="Alice's link").actor_name
    assert "Alice&#x27;s link" in shown(client, person=pseudonym)
    assert "alicia" not in shown(client)


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"since": "2024-03-05", "until": "2024-03-04"}, "The last day, 2024-03-04, is before the first, 2024-03-05."),
        ({"since": "yesterday"}, "Enter a valid date."),
        ({"action": "flying"}, "Select a valid choice. flying is not one of the available choices."),
    ],
)
def test_a_filter_that_makes_no_sense_is_refused_in_words(
    world: World, rita: User, asked: dict[str, str], sentence: str
) -> None:
    client = world.browser(rita)
    for answer in (client.get("/ops/audit/", asked), client.post("/ops/audit/csv/", asked)):
        assert answer.status_code == 400
        assert sentence in answer.content.decode()
    assert not AuditEntry.objects.filter(action=Action.DATA_EXPORTED).exists()
    assert client.get("/ops/audit/", {"before": "7"}).status_code == 404


def test_pages_have_fifty_entries_the_newest_first_and_keep_the_filter(world: World, rita: User) -> None:
    client = world.browser(rita)
    for number in range(103):
        log.record(Action.LINK_REVOKED, actor=world.alice, target=f"link-{number:03}.")
    seen: list[str] = []
    address = "?person=alice&action=link.revoked"
    for step in itertools.count():
        page = client.get(f"/ops/audit/{address}").content.decode()
        seen.append(page)
        assert ("Newest" in page) == (step > 0)
        found = re.search(r'rel="next" href="([^"]+)"', page)
        if not found:
            break
        address = found[1].replace("&amp;", "&")
        assert "person=alice" in address
    order = [re.findall(r"link-(\d+)\.", page) for page in seen]
    assert [len(numbers) for numbers in order] == [50, 50, 3]
    assert [*itertools.chain(*order)] == [f"{number:03}" for number in reversed(range(103))]


def test_names_on_the_page_are_text(world: World, rita: User) -> None:
    log.record(Action.SIGN_IN_FAILED, subject_name="<script>alert(1)</script>", detail={"<b>": "<i>"})
    page = shown(world.browser(rita))
    assert "<script>alert" not in page and "<b>" not in page and "<i>" not in page
    assert "&lt;script&gt;alert(1)" in page


@pytest.mark.django_db(transaction=True)
async def test_csv_holds_what_was_found_and_no_formula(world: World, rita: User, monkeypatch: Any) -> None:
    monkeypatch.setattr("chatsite.audit.sheet.ROWS_AT_ONCE", 2)
    names = ["=1+1", "+1", "-1", "@x", "\t=1", "plain, with comma", "multi\nline"]

    def prepare() -> None:
        for name in names:
            log.record(Action.SIGN_IN_FAILED, subject_name=name, ip=ADDRESS, detail={"step": "password"})

    await database_sync_to_async(prepare)()
    client = AsyncClient()
    await database_sync_to_async(client.force_login)(rita)
    response = await client.post("/ops/audit/csv/", {"action": "account.sign_in_failed"})
    assert response["Content-Type"] == "text/csv; charset=utf-8"
    assert re.fullmatch(r'attachment; filename="audit \d{4}-\d\d-\d\d\.csv"', response["Content-Disposition"])
    data = b"".join([piece async for piece in response]).decode()  # type: ignore[attr-defined]
    rows = list(csv.DictReader(io.StringIO(data)))
    kept = [name if name[0] not in "=+-@\t" else f"'{name}" for name in names]
    assert [row["subject"] for row in rows] == kept[::-1]
    assert {(row["action"], row["ip"], row["detail"]) for row in rows} == {
        ("account.sign_in_failed", ADDRESS, '{"step": "password"}')
    }
    assert datetime.datetime.fromisoformat(rows[0]["at"]).utcoffset() == datetime.timedelta()
    taken = await database_sync_to_async(AuditEntry.objects.get)(action=Action.DATA_EXPORTED)
    assert (taken.actor_name, taken.detail) == ("rita", {"action": "account.sign_in_failed"})


def test_everybody_sees_what_concerns_them_and_nothing_else(world: World) -> None:
    world.browser().post("/accounts/login/", {"login": "alice", "password": "wrong"})
    with asked_by(world.root, "198.51.100.99"):
        log.record_about(world.alice, Action.CHANGED, detail={"changes": {"is_staff": [False, True]}})
        log.record(Action.GROUP_CHANGED, target="Careful group")
    with asked_by(world.alice, "203.0.113.5"):
        log.record_about(world.root, Action.KEY_REVOKED, target="sf_of_root")
        log.record(Action.KEY_CREATED, target="sf_of_alice")
    answer = world.browser(world.alice).get("/account/activity/")
    page = answer.content.decode()
    for part in ("Failed to sign in", ADDRESS, "by root", "Staff: no → yes", "sf_of_alice", "203.0.113.5"):
        assert part in page, part
    for part in ("Careful group", "sf_of_root", "198.51.100.99"):
        assert part not in page, part
    assert "sf_of_root" in world.browser(world.root).get("/account/activity/").content.decode()
    assert world.browser().get("/account/activity/").status_code == 302
    assert "no-store" in answer["Cache-Control"]


def test_links_lead_auditors_to_the_log_and_nobody_else(world: World, rita: User) -> None:
    assert 'href="/ops/audit/"' in world.browser(world.root).get("/ops/").content.decode()
    assert 'href="/ops/audit/"' in world.browser(rita).get("/account/activity/").content.decode()
    staff = User.objects.create_user("sam", is_staff=True)
    assert 'href="/ops/audit/"' not in world.browser(staff).get("/ops/").content.decode()
    assert 'href="/account/activity/"' in world.browser(world.alice).get("/account/activity/").content.decode()
