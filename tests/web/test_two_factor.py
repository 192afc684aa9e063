"""A second factor of one's own: set up, asked for at sign-in, limited, taken away, and how it is kept."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from typing import Any

import pytest
import redis as redis_py
from allauth.mfa.models import Authenticator
from allauth.mfa.recovery_codes.internal.auth import RecoveryCodes
from django.core import mail
from django.test import Client

from chatsite.accounts.models import User
from tests.totp import code
from tests.web.enrolling import PASSWORD, SECRET, SETUP, enrol, is_signed_in, sign_in

pytestmark = pytest.mark.usefixtures("site", "redis")  # limits are counted in Valkey, which is emptied


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


def test_forms_of_the_factor_need_their_token(ann: User, redis: redis_py.Redis, site: Callable[..., None]) -> None:
    enrol(ann)
    client = Client(enforce_csrf_checks=True)
    client.force_login(ann)
    for path in (SETUP, "/accounts/2fa/totp/deactivate/", "/accounts/2fa/recovery-codes/generate/"):
        assert client.post(path, {"code": code(SECRET)}).status_code == 403
    assert Authenticator.objects.count() == 2


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
