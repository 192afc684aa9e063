"""A second factor: set up, asked for at sign-in, limited, and asked of people by the rules, on every way in."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from typing import Any

import pytest
import redis as redis_py
from allauth.mfa.models import Authenticator
from allauth.mfa.recovery_codes.internal.auth import RecoveryCodes
from allauth.mfa.signals import authenticator_removed
from allauth.mfa.totp.internal.auth import TOTP
from channels.db import database_sync_to_async
from django.contrib.auth.models import Group, Permission
from django.core import mail
from django.test import Client

from chatsite.accounts.models import ApiKey, User
from chatsite.api.authentication import authenticate
from chatsite.chat import actions, consumers
from chatsite.chat.models import Conversation
from chatsite.rules import second_factor
from chatsite.rules.effective import rules_of
from chatsite.rules.models import GroupRules, SiteRules
from chatsite.sharing import actions as sharing
from chatsite.sharing.models import Share
from tests.totp import code
from tests.web.chat_worker import StepWorker
from tests.web.sse_client import Stream
from tests.web.test_live import Window
from tests.web.test_ws import Socket

SECRET = "JBSWY3DPEHPK3PXPJBSWY3DPEHPK3PXP"
PASSWORD = "correct horse 7"
SETUP = "/accounts/2fa/totp/activate/"
HX = {"HX-Request": "true", "HX-Current-URL": "http://testserver/chat/7/?all"}

in_thread = database_sync_to_async
pytestmark = pytest.mark.usefixtures("site", "redis")  # limits are counted in Valkey, which is emptied


@pytest.fixture
def ann(db: None, settings: Any) -> User:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # the real one takes its time
    return User.objects.create_user("ann", password=PASSWORD)


@pytest.fixture
def page(ann: User) -> Client:
    """A browser in which ann is signed in and has just typed her password."""
    client = Client()
    assert sign_in(client)["Location"] == "/"
    confirmed = client.post("/accounts/reauthenticate/", {"password": PASSWORD})
    assert confirmed.status_code == 302
    return client


def sign_in(client: Client, name: str = "ann", to: str = "/") -> Any:
    return client.post(f"/accounts/login/?next={to}", {"login": name, "password": PASSWORD})


def enrol(user: User) -> list[str]:
    """The recovery codes."""
    TOTP.activate(user, SECRET)
    return list(RecoveryCodes.activate(user).get_unused_codes())


def ask_of(whom: str) -> None:
    SiteRules.objects.update_or_create(id=1, defaults={"two_factor": whom})


def ask_of_group(*members: User, name: str = "careful") -> Group:
    group = Group.objects.create(name=name)
    GroupRules.objects.create(group=group, requires_two_factor=True)
    group.user_set.add(*members)  # type: ignore[attr-defined]
    return group


def is_signed_in(client: Client) -> bool:
    return client.get("/accounts/sessions/").status_code == 200


# -- one's own


def test_setting_up_shows_the_secret_as_picture_and_text_and_takes_the_right_code_alone(page: Client) -> None:
    shown = page.get(SETUP).content.decode()
    secret = re.findall(r'<code class="secret">([A-Z2-7]{32})</code>', shown)[0]
    picture = re.findall(r'<img class="qr" src="data:image/svg\+xml;base64,([^"]+)"', shown)[0]
    assert b"<svg" in base64.b64decode(picture)
    wrong = page.post(SETUP, {"code": "000000" if code(secret) != "000000" else "000001"})
    assert b"Incorrect code" in wrong.content
    assert secret in wrong.content.decode(), "the app that was set up meanwhile would be of no use"
    assert not Authenticator.objects.exists()
    taken = page.post(SETUP, {"code": code(secret)})
    assert taken["Location"] == "/accounts/2fa/recovery-codes/"
    assert set(Authenticator.objects.values_list("type", flat=True)) == {"totp", "recovery_codes"}


def test_setting_up_asks_for_the_password_again(ann: User) -> None:
    client = Client()
    sign_in(client)
    assert client.get(SETUP)["Location"] == f"/accounts/reauthenticate/?next={SETUP.replace('/', '%2F')}"
    assert b"Incorrect password" in client.post("/accounts/reauthenticate/", {"password": "wrong"}).content
    assert client.post(f"/accounts/reauthenticate/?next={SETUP}", {"password": PASSWORD})["Location"] == SETUP


def test_who_has_nothing_to_show_again_can_set_one_up(ann: User) -> None:
    """Somebody who came by another site's sign-in has no password here."""
    User.objects.filter(pk=ann.pk).update(password="!none")
    client = Client()
    client.force_login(User.objects.get())
    assert client.get(SETUP).status_code == 200
    enrol(ann)
    client.get("/accounts/2fa/recovery-codes/generate/")
    refused = client.post("/accounts/2fa/recovery-codes/generate/")
    assert refused["Location"].startswith("/accounts/2fa/reauthenticate/"), "now there is a factor to show"


def test_signing_in_asks_for_the_code_and_goes_on_to_where_it_was_for(ann: User) -> None:
    enrol(ann)
    client = Client()
    assert sign_in(client, to="/chat/7/")["Location"] == "/accounts/2fa/authenticate/"
    assert not is_signed_in(client)
    assert b"recovery codes" in client.get("/accounts/2fa/authenticate/").content
    assert client.post("/accounts/2fa/authenticate/", {"code": code(SECRET)})["Location"] == "/chat/7/"
    assert is_signed_in(client)


@pytest.mark.parametrize("periods", [-1, 1])
def test_a_clock_that_is_half_a_minute_off_is_forgiven(ann: User, periods: int) -> None:
    enrol(ann)
    client = Client()
    sign_in(client)
    assert client.post("/accounts/2fa/authenticate/", {"code": code(SECRET, periods)}).status_code == 302


def test_a_code_signs_in_once(ann: User) -> None:
    codes = enrol(ann)
    for one in (code(SECRET), codes[0]):
        for is_first in (True, False):
            client = Client()
            sign_in(client)
            answer = client.post("/accounts/2fa/authenticate/", {"code": one})
            assert (answer.status_code == 302) == is_first, one
            assert is_signed_in(client) == is_first


def test_wrong_codes_are_limited_whoever_types_them(ann: User) -> None:
    enrol(ann)
    for number in range(6):
        client = Client(REMOTE_ADDR=f"198.51.100.{number}")
        sign_in(client)
        client.post("/accounts/2fa/authenticate/", {"code": "000000"})
    client = Client(REMOTE_ADDR="203.0.113.1")
    sign_in(client)
    refused = client.post("/accounts/2fa/authenticate/", {"code": code(SECRET)})
    assert b"Too many failed login attempts" in refused.content
    assert not is_signed_in(client)


def test_recovery_codes_are_shown_downloaded_and_made_anew(page: Client, ann: User) -> None:
    codes = enrol(ann)
    shown = page.get("/accounts/2fa/recovery-codes/")
    assert all(one in shown.content.decode() for one in codes)
    assert "no-store" in shown["Cache-Control"]
    file = page.get("/accounts/2fa/recovery-codes/download/")
    assert file["Content-Disposition"] == 'attachment; filename="recovery-codes.txt"'
    assert file.content.decode().split("\n")[0] == "Recovery codes of ann for SmolFleet. Each signs in once."
    assert file.content.decode().split()[-len(codes) :] == codes
    assert b"The 10 codes that are left" in page.get("/accounts/2fa/recovery-codes/generate/").content
    assert page.post("/accounts/2fa/recovery-codes/generate/").status_code == 302
    renewed = page.get("/accounts/2fa/recovery-codes/").content.decode()
    assert not any(one in renewed for one in codes)


def test_taking_it_away_takes_the_recovery_codes_too(page: Client, ann: User) -> None:
    enrol(ann)
    assert b"/accounts/2fa/totp/deactivate/" in page.get("/accounts/2fa/").content
    assert page.post("/accounts/2fa/totp/deactivate/").status_code == 302
    assert not Authenticator.objects.exists()


def test_few_recovery_codes_are_warned_of(page: Client, ann: User) -> None:
    for one in enrol(ann)[:8]:
        assert Authenticator.objects.get(type="recovery_codes").wrap().validate_code(one)
    shown = page.get("/accounts/2fa/").content
    assert b"2 of 10 are left. Make new ones" in shown


def test_notices_go_by_mail_and_a_mail_server_that_is_away_undoes_nothing(
    page: Client, ann: User, settings: Any
) -> None:
    settings.ACCOUNT_EMAIL_NOTIFICATIONS = True
    ann.emailaddress_set.create(email="ann@example.org", primary=True, verified=True)  # type: ignore[attr-defined]
    enrol(ann)
    assert page.post("/accounts/2fa/totp/deactivate/").status_code == 302
    assert [sent.to for sent in mail.outbox] == [["ann@example.org"]]
    enrol(ann)
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", 9  # nobody listens
    assert page.post("/accounts/2fa/totp/deactivate/").status_code == 302
    assert not Authenticator.objects.exists()


# -- asked of people by the rules


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
    conversation = actions.start_conversation(alice)
    actions.send_message(alice, conversation, "Hello")
    for scope, is_open in ((Share.Scope.SIGNED_IN, False), (Share.Scope.ANYONE, True)):
        link = sharing.share(alice, conversation.pk, scope=scope, days=None, with_thoughts=False)
        assert page.get(f"/s/{link.token}/").status_code == 200
        ask_of("everybody")
        assert (page.get(f"/s/{link.token}/").status_code == 200) == is_open
        SiteRules.objects.all().delete()


# -- streams


@pytest.mark.usefixtures("hub")
async def test_streams_and_sockets_are_refused(alice: User, conversation: Conversation, worker: StepWorker) -> None:
    sent = await in_thread(actions.send_message)(alice, conversation, "Why?")
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
    monkeypatch.setattr(consumers, "PING_SECONDS", 0.05)
    monkeypatch.setattr(consumers, "RECHECK_SECONDS", 0.05)
    browser = Client()
    await in_thread(browser.force_login)(alice)
    async with Window(alice, session=browser.session) as window:
        assert window.status == 200
        await in_thread(ask_of)("everybody")
        await window.to_end()
    assert "again" not in window.body


# -- Django's admin


def test_the_admin_has_no_way_in_of_its_own(ann: User) -> None:
    User.objects.update(is_staff=True, is_superuser=True)
    enrol(ann)
    client = Client()
    asked = client.get("/admin/", follow=True)
    assert asked.redirect_chain[-1][0] == "/accounts/login/?next=%2Fadmin%2F"
    bypass = client.post("/admin/login/?next=/admin/", {"username": "ann", "password": PASSWORD})
    assert bypass["Location"] == "/accounts/login/?next=%2Fadmin%2F"
    assert not is_signed_in(client)
    assert client.get("/admin/password_change/").status_code == 302
    assert sign_in(client, to="/admin/")["Location"] == "/accounts/2fa/authenticate/"
    assert client.get("/admin/").status_code == 302
    assert client.post("/accounts/2fa/authenticate/", {"code": code(SECRET)})["Location"] == "/admin/"
    assert client.get("/admin/").status_code == 200
    assert client.get("/admin/password_change/")["Location"] == "/accounts/password/change/"


def test_the_admin_is_closed_to_who_lacks_a_factor_and_to_who_is_not_staff(page: Client) -> None:
    assert page.get("/admin/login/").status_code == 403
    User.objects.update(is_staff=True, is_superuser=True)
    assert page.get("/admin/").status_code == 200
    ask_of("staff")
    assert page.get("/admin/")["Location"] == SETUP
    assert page.get("/admin/accounts/user/")["Location"] == SETUP


def test_an_admin_takes_a_lost_factor_away_and_sees_no_secret(ann: User, sam: User) -> None:
    enrol(ann)
    admin = Client()
    admin.force_login(sam)
    for path in ("/admin/mfa/authenticator/", "/admin/usersessions/usersession/"):
        assert admin.get(path).status_code == 404
    for path in ("/admin/accounts/user/", f"/admin/accounts/user/{ann.pk}/change/"):
        assert SECRET not in admin.get(path).content.decode()
    heard: list[tuple[User, str]] = []

    def hear(user: User, authenticator: Authenticator, **_: Any) -> None:
        heard.append((user, authenticator.type))

    authenticator_removed.connect(hear)
    try:
        chosen = {"action": "remove_second_factor", "_selected_action": [str(ann.pk)]}
        assert b"1 second factor(s) taken away" in admin.post("/admin/accounts/user/", chosen, follow=True).content
    finally:
        authenticator_removed.disconnect(hear)
    assert sorted(heard, key=str) == [(ann, "recovery_codes"), (ann, "totp")]
    assert sign_in(Client())["Location"] == "/"


def test_taking_factors_away_needs_the_permission_to_change_people(ann: User, bob: User) -> None:
    enrol(ann)
    User.objects.filter(pk=bob.pk).update(is_staff=True)
    bob.user_permissions.add(Permission.objects.get(codename="view_user"))
    viewer = Client()
    viewer.force_login(bob)
    for action in ("remove_second_factor", "sign_out_everywhere"):
        viewer.post("/admin/accounts/user/", {"action": action, "_selected_action": [str(ann.pk)]})
    assert Authenticator.objects.count() == 2


def test_forms_of_the_factor_need_their_token(ann: User, redis: redis_py.Redis, site: Callable[..., None]) -> None:
    enrol(ann)
    client = Client(enforce_csrf_checks=True)
    client.force_login(ann)
    for path in (SETUP, "/accounts/2fa/totp/deactivate/", "/accounts/2fa/recovery-codes/generate/"):
        assert client.post(path, {"code": code(SECRET)}).status_code == 403
    assert Authenticator.objects.count() == 2


# -- how it is kept


def test_database_alone_makes_no_codes_and_older_keys_of_the_site_still_open(ann: User, settings: Any) -> None:
    """With a key that is gone no code counts, and surely not that of an empty secret."""
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "a" * 40, []
    codes = enrol(ann)
    kept = "".join(str(row.data) for row in Authenticator.objects.all())
    assert SECRET not in kept
    assert not any(each in kept for each in codes)
    totp = Authenticator.objects.get(user=ann, type="totp").wrap()
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "b" * 40, ["a" * 40]
    assert totp.validate_code(code(SECRET))
    settings.SECRET_KEY_FALLBACKS = []
    assert not totp.validate_code(code(SECRET, periods=1))
    assert not totp.validate_code(code(""))
    assert RecoveryCodes(Authenticator.objects.get(user=ann, type="recovery_codes")).get_unused_codes() != codes
