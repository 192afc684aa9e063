"""The site's review policy: what staff may open under it, on every surface, superusers included.

`SECRET` stands in everything that alice wrote, or was written for her. No page but a transcript opened with a reason
may show a letter of it, whatever the policy; while it is off, none at all. Every other surface: `tests/walk`.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client

from chatsite.accounts.models import User
from chatsite.chat.actions import feedback
from chatsite.chat.models import Conversation, Feedback
from chatsite.review.models import AccessEvent
from tests.web.reviewing import REASON, SECRET, partly_reported, people, set_policy, signed_in, turn

POLICIES = ("off", "reported", "reason")
ROLES = (None, "alice", "bob", "sam", "paul", "rita", "root")
REVIEWERS = ("paul", "rita", "root")
PART = SECRET[:5]  # a search that would find it; the page may repeat what was looked for

pytestmark = pytest.mark.django_db


@pytest.fixture
def cast() -> dict[str, User]:
    return people()


@pytest.fixture
def plain(cast: dict[str, User]) -> Conversation:
    """Nothing of it is reported."""
    conversation = Conversation.objects.create(owner=cast["alice"], title=f"Plain {SECRET}")
    answer = turn(conversation, f"{SECRET}?", f"{SECRET}!")
    Feedback.objects.create(message=answer, rating=-1, comment=f"Bad {SECRET}")
    return conversation


@pytest.fixture
def reported(cast: dict[str, User]) -> Conversation:
    return partly_reported(cast["alice"])


def surfaces(conversation: Conversation) -> list[tuple[str, str, str]]:
    """Name, method and address of each page of review that is about others; `opening` needs the conversation."""
    page = f"/review/{conversation.pk}/"
    row = Feedback.objects.filter(message__conversation=conversation).order_by("pk").last()
    assert row is not None
    return [
        ("list", "get", "/review/"),
        ("search", "get", "/review/?owner=alice"),
        ("title search", "get", f"/review/?owner=alice&title={PART}"),
        ("opinions", "get", "/review/?owner=&feedback=any"),
        ("reports", "get", "/review/reports/"),
        ("handled reports", "get", "/review/reports/?state=handled"),
        ("opening", "get", page),
        ("opening", "post", page),
        ("report", "get", f"/review/reports/{row.pk}/"),
        ("report", "post", f"/review/reports/{row.pk}/"),
    ]


def asked(client: Client, method: str, address: str) -> Any:
    return client.post(address, {"reason": REASON, "note": "seen"}) if method == "post" else client.get(address)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("policy", POLICIES)
def test_policy_and_role_decide_on_every_page_of_review(
    cast: dict[str, User], plain: Conversation, policy: str, role: str | None
) -> None:
    set_policy(policy)
    client = signed_in(cast[role] if role else None)
    for name, method, address in surfaces(plain):
        answer = asked(client, method, address)
        is_there = role in REVIEWERS and policy != "off"
        if name == "report" or (name == "opening" and policy == "reported"):  # it has none
            is_there = False
        assert answer.status_code == (200 if is_there else 404), (name, method)
        is_opened = is_there and (name, method) == ("opening", "post")
        assert (SECRET in answer.content.decode()) is is_opened, (name, method)
    assert AccessEvent.objects.count() == (role in REVIEWERS and policy == "reason")


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_reported_is_there_for_reviewers_unless_the_policy_is_off(
    cast: dict[str, User], reported: Conversation, policy: str, role: str | None
) -> None:
    set_policy(policy)
    client = signed_in(cast[role] if role else None)
    is_there = role in REVIEWERS and policy != "off"
    row = Feedback.objects.get(is_reported=True)
    assert client.get(f"/review/reports/{row.pk}/").status_code == (200 if is_there else 404)
    handled = client.post(f"/review/reports/{row.pk}/", {"note": "x"})
    assert handled.status_code == (302 if is_there else 404)
    opened = client.post(f"/review/{reported.pk}/", {"reason": REASON})
    assert opened.status_code == (200 if is_there else 404)
    assert (SECRET in opened.content.decode()) is is_there
    assert AccessEvent.objects.count() == is_there


def test_reported_shows_what_led_to_the_answer_and_nothing_else(cast: dict[str, User], reported: Conversation) -> None:
    set_policy("reported")
    client = signed_in(cast["rita"])
    page = client.post(f"/review/{reported.pk}/", {"reason": REASON}).content.decode()
    assert [word for word in ("ASKED", "ANSWERED", "NAME", "FILE", "COMMENT", "INSTRUCTED") if word not in page] == []
    assert [word for word in ("TITLE", "BESIDE", "LATER") if word in page] == []
    set_policy("reason")
    page = client.post(f"/review/{reported.pk}/", {"reason": REASON}).content.decode()
    assert [word for word in ("TITLE", "BESIDE", "LATER", "ASKED") if word not in page] == []


def test_reported_lists_and_counts_only_what_is_reported(
    cast: dict[str, User], reported: Conversation, plain: Conversation
) -> None:
    set_policy("reported")
    client = signed_in(cast["rita"])

    def found(query: str) -> tuple[list[str], list[str]]:
        page = client.get(f"/review/?{query}").content.decode()
        rows = re.findall(r"<tr>\s*<td>.*?</tr>", page, re.S)
        cells = [cell for row in rows for cell in re.findall(r"<td>(\d+)</td>", row)]
        return re.findall(r"<td><a[^>]*>([0-9a-f-]{36})</a>", page), cells

    assert found("owner=alice") == ([str(reported.pk)], ["1"])  # of four messages and three opinions, one report
    assert found(f"owner={reported.pk}") == ([str(reported.pk)], ["1"])
    assert found(f"owner={plain.pk}") == ([], [])
    assert found("owner=&feedback=any") == ([], [])
    assert found("owner=alice&feedback=good") == (
        [str(reported.pk)],
        ["1"],
    )  # not asked about: no way to guess opinions
    assert found("owner=alice&title=nothing-like-it") == ([str(reported.pk)], ["1"])  # nor titles
    listed = client.get("/review/reports/").content.decode()
    assert f"/review/{reported.pk}/" in listed
    assert f"/review/{plain.pk}/" not in listed


@pytest.mark.parametrize("way", ["withdrawn", "good", "unticked", "answer deleted"])
def test_a_report_that_is_taken_back_closes_the_conversation(
    cast: dict[str, User], reported: Conversation, way: str
) -> None:
    set_policy("reported")
    client = signed_in(cast["rita"])
    row = Feedback.objects.select_related("message").get(is_reported=True)
    assert client.get(f"/review/{reported.pk}/").status_code == 200
    match way:
        case "withdrawn":
            feedback.withdraw(cast["alice"], row.message)
        case "good":
            feedback.give(cast["alice"], row.message, 1)
        case "unticked":
            feedback.give(cast["alice"], row.message, -1, comment="kept")
        case _:
            row.message.delete()
    for method, address in (
        ("get", f"/review/{reported.pk}/"),
        ("post", f"/review/{reported.pk}/"),
        ("get", f"/review/reports/{row.pk}/"),
        ("post", f"/review/reports/{row.pk}/"),
    ):
        assert asked(client, method, address).status_code == 404, (method, address)
    assert not AccessEvent.objects.exists()


def test_a_change_counts_at_the_next_request(cast: dict[str, User], plain: Conversation) -> None:
    """A reviewer has a transcript open when the policy goes off."""
    client = signed_in(cast["root"])
    opened = client.post(f"/review/{plain.pk}/", {"reason": REASON})  # nobody has decided anything: with a reason
    assert SECRET in opened.content.decode()
    home = client.get("/").content.decode()
    assert 'href="/review/"' in home
    for policy, status in (("off", 404), ("reason", 200), ("reported", 404), ("reason", 200)):
        set_policy(policy)
        assert client.get(f"/review/{plain.pk}/").status_code == status, policy
        assert client.post(f"/review/{plain.pk}/", {"reason": REASON}).status_code == status, policy
    set_policy("off")
    assert 'href="/review/"' not in client.get("/").content.decode()


def test_admin_leads_to_a_transcript_only_where_there_is_one(
    cast: dict[str, User], plain: Conversation, reported: Conversation
) -> None:
    client = signed_in(cast["root"])
    for policy, has_plain, has_reported in (
        ("off", False, False),
        ("reported", False, True),
        ("reason", True, True),
    ):
        set_policy(policy)
        for conversation, is_there in ((plain, has_plain), (reported, has_reported)):
            opinion = Feedback.objects.filter(message__conversation=conversation)[0]
            for path in (
                f"conversation/{conversation.pk}",
                f"message/{conversation.leaf_id}",
                f"feedback/{opinion.pk}",
            ):
                page = client.get(f"/admin/chat/{path}/change/").content.decode()
                assert (f'href="/review/{conversation.pk}/"' in page) is is_there, (policy, path)


def test_everybody_reads_the_policy_in_force_on_their_own_page(cast: dict[str, User]) -> None:
    for policy, words in (
        ("off", "Nobody can open your conversations"),
        ("reported", "Reviewers can open only what you report"),
        ("reason", "Reviewers can open any conversation"),
    ):
        set_policy(policy)
        assert words in signed_in(cast["bob"]).get("/review/mine/").content.decode()
