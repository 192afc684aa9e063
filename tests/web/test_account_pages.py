"""Every page that allauth brings wears our look, has nothing inline, and says what is so on this site."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from allauth.account.models import EmailAddress, EmailConfirmationHMAC
from allauth.mfa.models import Authenticator
from allauth.mfa.recovery_codes.internal.auth import RecoveryCodes
from allauth.mfa.totp.internal.auth import TOTP
from django.core import mail
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

from chatsite.accounts.models import User
from tests.web.test_pages import Page

PASSWORD = "correct horse 7"
SECRET = "JBSWY3DPEHPK3PXPJBSWY3DPEHPK3PXP"

OWN = {  # beside the list of one's account
    "account_email": "/accounts/email/",
    "account_change_password": "/accounts/password/change/",
    "mfa_index": "/accounts/2fa/",
    "mfa_deactivate_totp": "/accounts/2fa/totp/deactivate/",
    "mfa_view_recovery_codes": "/accounts/2fa/recovery-codes/",
    "mfa_generate_recovery_codes": "/accounts/2fa/recovery-codes/generate/",
    "usersessions_list": "/accounts/sessions/",
}
CARDS = {  # on the way in or out
    "account_logout": "/accounts/logout/",
    "account_reauthenticate": "/accounts/reauthenticate/",
    "account_request_reauthentication_code": "/accounts/reauthenticate/code/",
    "mfa_reauthenticate": "/accounts/2fa/reauthenticate/",
    "account_inactive": "/accounts/inactive/",
    "account_email_verification_sent": "/accounts/confirm-email/",
    "account_confirm_email": "/accounts/confirm-email/nonsense/",
    "account_reset_password": "/accounts/password/reset/",
    "account_reset_password_done": "/accounts/password/reset/done/",
    "account_reset_password_from_key": "/accounts/password/reset/key/1-nonsense/",
    "account_reset_password_from_key_done": "/accounts/password/reset/key/done/",
}
ELSEWHERE = {  # tested where they belong, or no page
    "account_login",
    "account_signup",
    "mfa_activate_totp",
    "mfa_authenticate",
    "mfa_download_recovery_codes",
    "account_set_password",
    "account_confirm_reauthentication_code",
    "account_confirm_login_code",  # signing in by a mailed code is off: it leads to the sign-in
}

pytestmark = pytest.mark.usefixtures("site", "redis")


@pytest.fixture
def ann(db: None, settings: Any) -> User:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # the real one takes its time
    settings.EMAIL_HOST = "mail.example"
    settings.ACCOUNT_REAUTHENTICATION_METHODS = ["password", "mfa", "code"]
    user = User.objects.create_user("ann", password=PASSWORD)
    EmailAddress.objects.create(user=user, email="ann@example.org", verified=True, primary=True)
    return user


@pytest.fixture
def client(ann: User) -> Client:
    """ann, who has a factor and has just shown her password again."""
    client = Client()
    client.force_login(ann)
    client.post("/accounts/reauthenticate/", {"password": PASSWORD})
    TOTP.activate(ann, SECRET)
    RecoveryCodes.activate(ann)
    return client


def names(patterns: list[URLPattern | URLResolver]) -> Iterator[str]:
    for pattern in patterns:
        if isinstance(pattern, URLResolver):
            yield from names(pattern.url_patterns)
        elif pattern.name:
            yield pattern.name


def check_look(page: Any, kind: str) -> None:
    assert page.status_code == 200
    text = page.content.decode()
    assert f'<main class="page {kind}" id="main">' in text
    assert text.count("<h1") == 1
    for tag, attributes in Page(page.content).elements:
        assert tag != "style"
        assert "style" not in attributes
        assert tag != "script" or attributes.get("src")
        assert tag != "button" or "btn" in attributes.get("class", ""), attributes


def test_every_address_of_allauth_is_known_here() -> None:
    (ours,) = [p for p in get_resolver().url_patterns if str(p.pattern) == "accounts/" and isinstance(p, URLResolver)]
    others = ("socialaccount_", "openid_connect_", "github_")
    found = {name for name in names(ours.url_patterns) if not name.startswith(others)}
    assert found == set(OWN) | set(CARDS) | ELSEWHERE


@pytest.mark.parametrize("path", OWN.values(), ids=OWN)
def test_page_of_ones_own_has_the_list_with_its_place_marked(client: Client, path: str) -> None:
    page = client.get(path)
    check_look(page, "account managed")
    current = re.findall(r'<a href="([^"]+)" aria-current="(page|true)"', page.content.decode())
    assert len(current) == 1
    assert path.startswith(current[0][0])
    assert (current[0][1] == "page") == (path == current[0][0])


@pytest.mark.parametrize("path", CARDS.values(), ids=CARDS)
def test_page_on_the_way_in_or_out_is_a_card(client: Client, path: str) -> None:
    check_look(client.get(path), "card account")


@pytest.mark.parametrize("path", ["/prompts/", "/links/", "/transfer/", "/account/usage/", "/review/mine/"])
def test_pages_of_ones_chats_stand_in_the_same_list(client: Client, path: str) -> None:
    assert f'<a href="{path}" aria-current="page">' in client.get(path).content.decode()


def test_setting_up_a_factor_wears_our_look_too(client: Client) -> None:
    Authenticator.objects.all().delete()
    check_look(client.get("/accounts/2fa/totp/activate/"), "account managed")
    check_look(client.get("/accounts/2fa/"), "account managed")


def test_code_at_sign_in_wears_our_look_too(client: Client) -> None:
    visitor = Client()
    visitor.post("/accounts/login/", {"login": "ann", "password": PASSWORD})
    check_look(visitor.get("/accounts/2fa/authenticate/"), "card account")


def test_code_by_mail_confirms_who_one_is(client: Client) -> None:
    path = "/accounts/reauthenticate/code/?next=/accounts/2fa/"
    assert b"ann@example.org" in client.get(path).content
    sent = client.post(path, {"recipient": "ann@example.org"})
    check_look(client.get(sent["Location"]), "card account")
    code = re.findall(r"^([A-Z0-9]+-[A-Z0-9]+)$", mail.outbox[-1].body, re.M)[0]
    assert client.post(sent["Location"], {"code": code})["Location"] == "/accounts/2fa/"


def test_who_has_no_password_sets_one(client: Client, ann: User) -> None:
    ann.set_unusable_password()
    ann.save()
    client.force_login(ann)
    client.get("/accounts/2fa/")
    page = client.get("/accounts/password/change/", follow=True)
    check_look(page, "account managed")
    typed = {"password1": "another horse 8", "password2": "another horse 8"}
    assert client.post("/accounts/password/set/", typed).status_code == 302
    assert User.objects.get().check_password("another horse 8")


def test_an_address_is_added_verified_made_the_main_one_and_removed(client: Client, ann: User, settings: Any) -> None:
    settings.MFA_ALLOW_UNVERIFIED_EMAIL = True
    added = client.post("/accounts/email/", {"email": "new@example.org", "action_add": ""}, follow=True)
    assert b"A link to verify new@example.org is on its way" in added.content
    assert b"not verified" in added.content
    link = re.findall(r"http://testserver(\S+)", mail.outbox[-1].body)[0]
    asked = client.get(link)
    check_look(asked, "card account")
    assert b"Is new@example.org an address of ann?" in asked.content
    client.post(link)
    new = EmailAddress.objects.get(email="new@example.org")
    assert new.verified
    client.post("/accounts/email/", {"email": new.email, "action_primary": ""})
    client.post("/accounts/email/", {"email": "ann@example.org", "action_remove": ""})
    assert [row.email for row in EmailAddress.objects.filter(primary=True)] == ["new@example.org"]
    assert EmailAddress.objects.count() == 1


def test_an_address_of_another_account_is_not_verified(client: Client, bob: User, ann: User) -> None:
    mine = EmailAddress.objects.create(user=bob, email="ann@example.org")
    page = Client().get(f"/accounts/confirm-email/{EmailConfirmationHMAC(mine).key}/")
    assert b"belongs to another account already" in page.content


def test_a_forgotten_password_is_set_by_a_mailed_link(client: Client) -> None:
    visitor = Client()
    assert visitor.post("/accounts/password/reset/", {"email": "ann@example.org"}).status_code == 302
    link = re.findall(r"http://testserver(\S+)", mail.outbox[-1].body)[0]
    form = visitor.get(link, follow=True)
    check_look(form, "card account")
    typed = {"password1": "another horse 8", "password2": "another horse 8"}
    done = visitor.post(form.request["PATH_INFO"], typed, follow=True)
    assert b"Your password is changed" in done.content
    assert client.get("/accounts/email/").status_code == 302, "signed out"


def test_where_no_mail_is_sent_nothing_says_otherwise(client: Client, settings: Any) -> None:
    settings.EMAIL_HOST = ""
    assert b"This site sends no mail" in Client().get("/accounts/password/reset/").content
    shown = client.get("/accounts/email/").content
    assert b"sends no mail" in shown
    assert b"verified" not in shown
    settings.MFA_ALLOW_UNVERIFIED_EMAIL = True
    added = client.post("/accounts/email/", {"email": "new@example.org", "action_add": ""}, follow=True)
    assert b"new@example.org" in added.content
    assert b"on its way" not in added.content


def test_too_many_tries_get_a_page_of_ours(client: Client) -> None:
    answers = [client.post("/accounts/reauthenticate/", {"password": "wrong"}) for _ in range(11)]
    assert answers[-1].status_code == 429
    assert b"Too many requests" in answers[-1].content
    assert b'class="site"' in answers[-1].content


def test_account_is_one_link_of_the_menu_and_of_every_header(client: Client, site: Callable[..., None]) -> None:
    chat = client.get("/").content.decode()
    assert '<a class="item" href="/account/usage/">Account</a>' in chat
    for path in ("/accounts/2fa/", "/review/mine/"):
        assert '<a href="/account/usage/">Account</a>' in client.get(path).content.decode()
