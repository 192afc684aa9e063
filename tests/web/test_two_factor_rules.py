"""A second factor that the rules ask of people, on pages, streams and sockets, until they have set one up."""

from __future__ import annotations

from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from channels.db import database_sync_to_async
from django.contrib.auth.models import Permission
from django.test import Client

from chatsite.accounts.models import ApiKey, User
from chatsite.api.authentication import authenticate
from chatsite.chat.actions import send
from chatsite.chat.models import Conversation
from chatsite.chat.streams import sse
from chatsite.rules import second_factor
from chatsite.rules.effective import rules_of
from chatsite.rules.models import SiteRules
from chatsite.sharing import actions as sharing
from chatsite.sharing.models import Share
from tests.totp import code
from tests.web.chat_worker import StepWorker
from tests.web.enrolling import SETUP, ask_of, ask_of_group, enrol
from tests.web.sse_client import Stream
from tests.web.test_live import Window
from tests.web.test_ws import Socket

HX = {"HX-Request": "true", "HX-Current-URL": "http://testserver/chat/7/?all"}

in_thread = database_sync_to_async
pytestmark = pytest.mark.usefixtures("site", "redis")  # limits are counted in Valkey, which is emptied


@pytest.mark.parametrize("site_asks", SiteRules.TwoFactor.values)
@pytest.mark.parametrize("who", ["person", "member", "staff", "auditor"])
@pytest.mark.parametrize("has", [None, "totp", "recovery_codes"])
@pytest.mark.django_db
def test_missing_is_what_the_rules_ask_for_and_nobody_set_up(site_asks: str, who: str, has: str | None) -> None:
    person = User.objects.create_user("joe", is_staff=who == "staff")
    ask_of(site_asks)
    ask_of_group(*([person] if who == "member" else []))
    if who == "auditor":
        person.user_permissions.add(Permission.objects.get(codename="view_auditentry"))
    if has:
        Authenticator.objects.create(user=person, type=has, data={})
    asked = who == "member" or site_asks == "everybody" or (site_asks == "staff" and who in ("staff", "auditor"))
    assert rules_of(person).requires_two_factor == asked
    assert second_factor.is_missing(person) == (asked and has != "totp")


def test_one_query_answers_where_nothing_is_asked_or_there_is_one(ann: User, django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(1):
        assert not second_factor.is_missing(ann)
    ask_of("everybody")
    enrol(ann)
    with django_assert_num_queries(1):
        assert not second_factor.is_missing(ann)


def test_pages_lead_to_setting_one_up_and_then_back(page: Client) -> None:
    ask_of("everybody")
    for path in ("/links/", "/prompts/new/", "/", "/review/mine/?page=2"):
        sent = page.get(path)
        assert (sent.status_code, sent["Location"]) == (302, SETUP), path
        assert "no-store" in sent["Cache-Control"]
    assert b"The rules of this site ask you for one" in page.get(SETUP).content
    secret = page.session["mfa.totp.secret"]
    onward = page.post(SETUP, {"code": code(secret)}, follow=True).content.decode()
    assert '<a class="btn primary" href="/review/mine/?page=2">' in onward
    assert page.get("/links/").status_code == 200
    assert b"Go on to where you wanted" not in page.get("/accounts/2fa/").content


def test_what_is_no_page_is_told_so(page: Client) -> None:
    ask_of("everybody")
    fragment = page.get("/chat/sidebar/", headers=HX)
    assert (fragment.status_code, fragment["HX-Redirect"], fragment.content) == (401, SETUP, b"")
    assert page.session[second_factor.CAME_FOR] == "/chat/7/?all"
    for headers in ({"Sec-Fetch-Mode": "cors"}, {"Accept": "application/json"}):
        told = page.get("/transfer/all/", headers=headers)
        assert (told.status_code, told.content) == (401, b"Set up your second factor first.\n")
    assert page.session[second_factor.CAME_FOR] == "/chat/7/?all"
    sent = page.post("/chat/", {"text": "Hello", "key": "k"})
    assert (sent.status_code, sent["Location"]) == (302, SETUP)
    assert page.session[second_factor.CAME_FOR] == "/"
    assert not Conversation.objects.exists()


def test_what_comes_from_elsewhere_leads_to_no_other_site(page: Client) -> None:
    ask_of("everybody")
    page.get("/links/")
    for url in ("https://evil.example/", "http://testserver//evil.example/", ""):
        page.get("/chat/sidebar/", headers={"HX-Request": "true", "HX-Current-URL": url})
        assert page.session[second_factor.CAME_FOR] == "/", url
    page.get("/links/")
    page.get("/", PATH_INFO="//evil.example/")
    assert page.session[second_factor.CAME_FOR] == "/"


@pytest.mark.parametrize(
    "path",
    [
        "/accounts/2fa/",
        "/accounts/email/",
        "/accounts/sessions/",
        "/accounts/password/change/",
        "/accounts/logout/",
        "/manifest.webmanifest",
        "/sw.js",
        "/offline/",
    ],
)
def test_stays_open_without_a_factor(page: Client, path: str) -> None:
    ask_of("everybody")
    assert page.get(path).status_code == 200


def test_a_change_of_the_rules_counts_at_the_next_page(page: Client, ann: User) -> None:
    assert page.get("/links/").status_code == 200
    group = ask_of_group(ann)
    assert page.get("/links/").status_code == 302
    group.user_set.remove(ann)  # type: ignore[attr-defined]
    assert page.get("/links/").status_code == 200
    ask_of("staff")
    assert page.get("/links/").status_code == 200
    User.objects.update(is_staff=True)
    assert page.get("/links/").status_code == 302


def test_what_is_asked_for_cannot_be_taken_away_and_says_why(page: Client, ann: User) -> None:
    enrol(ann)
    ask_of_group(ann)
    index = page.get("/accounts/2fa/").content
    assert b"deactivate" not in index
    assert b"an admin of this site can do so" in index
    for answer in (page.get("/accounts/2fa/totp/deactivate/"), page.post("/accounts/2fa/totp/deactivate/")):
        assert b"The rules of this site ask you for a second factor" in answer.content
        assert b'<button class="btn danger"' not in answer.content
    assert Authenticator.objects.count() == 2


def test_an_unverified_address_is_named_as_what_stands_in_the_way(page: Client, ann: User, settings: Any) -> None:
    """Where mail is sent: a stranger's address must not be locked up with a factor."""
    settings.MFA_ALLOW_UNVERIFIED_EMAIL = False
    ann.emailaddress_set.create(email="ann@example.org", primary=True)  # type: ignore[attr-defined]
    ask_of("everybody")
    shown = page.get("/", follow=True)
    assert shown.redirect_chain[-1][0] == "/accounts/2fa/"
    assert b"until you have verified your email address" in shown.content


def test_keys_of_the_api_are_not_asked(ann: User) -> None:
    _, secret = ApiKey.create(ann)
    ask_of("everybody")
    assert authenticate(f"Bearer {secret}").user == ann


def test_links_for_people_of_the_site_ask_and_those_for_anyone_do_not(page: Client, alice: User) -> None:
    conversation = send.start_conversation(alice)
    send.send_message(alice, conversation, "Hello")
    for scope, is_open in ((Share.Scope.SIGNED_IN, False), (Share.Scope.ANYONE, True)):
        link = sharing.share(alice, conversation.pk, scope=scope, days=None, with_thoughts=False)
        assert page.get(f"/s/{link.token}/").status_code == 200
        ask_of("everybody")
        assert (page.get(f"/s/{link.token}/").status_code == 200) == is_open
        SiteRules.objects.all().delete()


# -- streams


@pytest.mark.usefixtures("hub")
async def test_streams_and_sockets_are_refused(alice: User, conversation: Conversation, worker: StepWorker) -> None:
    sent = await in_thread(send.send_message)(alice, conversation, "Why?")
    await in_thread(ask_of)("everybody")
    async with Stream(alice, sent.generation.pk) as stream:
        assert stream.status == 401
    async with Window(alice) as window:
        assert window.status == 401
    async with Socket(alice, conversation.pk) as socket:
        assert await socket.until_closed() == 4401
    await in_thread(enrol)(alice)
    async with Window(alice) as window:
        assert window.status == 200


@pytest.mark.usefixtures("hub")
async def test_open_streams_end_when_the_rules_begin_to_ask(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "PING_SECONDS", 0.05)
    monkeypatch.setattr(sse, "RECHECK_SECONDS", 0.05)
    browser = Client()
    await in_thread(browser.force_login)(alice)
    async with Window(alice, session=browser.session) as window:
        assert window.status == 200
        await in_thread(ask_of)("everybody")
        await window.to_end()
    assert "again" not in window.body
