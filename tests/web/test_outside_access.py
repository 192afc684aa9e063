"""Which people may come in from another place, what is asked of them beside, and where that is the only way in."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import pytest
from allauth.mfa.totp.internal import auth as totp
from django.test import Client

from chatsite.accounts.models import User
from chatsite.outside_config import OutsideConfig
from tests.web.coming_in import CALLBACK, CONNECTIONS, LOGIN, PASSWORD, come_in, local, signed_in, who

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("quick_passwords")]


def test_new_people_come_by_the_provider_s_own_setting(outside: Any, site: Any) -> None:
    site(sign_up_open=False)
    come_in(Client())
    assert User.objects.count() == 1
    outside(sign_up=False)
    User.objects.all().delete()
    client = Client()
    refused = come_in(client)
    assert refused.status_code == 403
    assert "Sign-up is closed" in refused.content.decode()
    assert not User.objects.exists()


def test_without_a_provider_there_is_no_button_and_no_way(outside: Any, site: Any) -> None:
    assert "Sign in with Corp" in Client().get("/accounts/login/").content.decode()
    assert "Sign in with Corp" in Client().get("/accounts/signup/").content.decode()
    alice = signed_in(local("alice"))
    assert "Other sign-ins" in alice.get(CONNECTIONS).content.decode()
    site(outside=OutsideConfig())
    assert "Sign in with" not in Client().get("/accounts/login/").content.decode()
    assert CONNECTIONS not in alice.get("/accounts/password/change/").content.decode()
    for path in (LOGIN, urlsplit(CALLBACK).path, "/accounts/github/login/", "/accounts/github/login/callback/"):
        assert Client().get(path).status_code == 404, path
        assert Client().post(path).status_code == 404, path


def test_without_passwords_the_button_is_the_only_way(outside: Any, site: Any) -> None:
    sam = local("sam", is_staff=True, is_superuser=True)
    inside = signed_in(sam)
    site(password_sign_in=False)
    page = Client().get("/accounts/login/").content.decode()
    assert "Sign in with Corp" in page
    assert "password" not in page.lower()
    assert 'href="/accounts/signup/"' not in page
    for path in ("/accounts/login/", "/admin/login/"):
        client = Client()
        answer = client.post(path, {"login": "sam", "username": "sam", "password": PASSWORD}, follow=True)
        assert who(client) is None, path
        assert answer.status_code == 200
    client = Client()
    told = client.post("/accounts/login/", {"login": "sam", "password": PASSWORD}).content.decode()
    assert "Nobody signs in with a password here" in told
    assert not client.login(username="sam", password=PASSWORD)
    assert "Sign-up is closed" in Client().get("/accounts/signup/").content.decode()
    for path in ("change/", "set/", "reset/", "reset/key/1-abc/"):
        for browser in (Client(), inside):
            for method in (browser.get, browser.post):
                refused = method(f"/accounts/password/{path}")
                assert refused.status_code == 403, path
                assert "No passwords here" in refused.content.decode()
    assert "/accounts/password/" not in inside.get(CONNECTIONS).content.decode()
    come_in(client)
    assert who(client) == "ann"


def test_second_factor_of_here_is_asked_after_the_other_place_s(outside: Any) -> None:
    come_in(Client())
    secret = totp.generate_totp_secret()
    totp.TOTP.activate(User.objects.get(), secret)
    client = Client()
    assert come_in(client, query="&next=/chat/7/")["Location"].startswith("/accounts/2fa/authenticate/")
    assert who(client) is None
    wrong = client.post("/accounts/2fa/authenticate/", {"code": "000000"})
    assert wrong.status_code == 200
    assert who(client) is None
    code = totp.format_hotp_value(totp.hotp_value(secret, next(totp.yield_hotp_counters_from_time())))
    assert client.post("/accounts/2fa/authenticate/", {"code": code})["Location"] == "/chat/7/"
    assert who(client) == "ann"
