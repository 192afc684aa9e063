"""Signing in with an account at GitHub, whose addresses are those of the provider on loopback."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from allauth.socialaccount.models import SocialAccount
from allauth.socialaccount.providers.github.views import GitHubOAuth2Adapter
from django.test import Client

from chatsite.accounts.models import User
from chatsite.outside_config import GitHubConfig, OutsideConfig
from tests.oidc_provider import CLIENT_ID, CLIENT_SECRET, Provider
from tests.web.coming_in import at_provider, begin, come_in, who

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("quick_passwords")]


@pytest.fixture
def github(site: Callable[..., None], redis: Any, provider: Provider, monkeypatch: pytest.MonkeyPatch) -> Provider:
    provider.redirect_uris = {"http://testserver/accounts/github/login/callback/"}
    for name, path in [
        ("authorize_url", "/authorize"),
        ("access_token_url", "/token"),
        ("profile_url", "/api/user"),
        ("emails_url", "/api/user/emails"),
    ]:
        monkeypatch.setattr(GitHubOAuth2Adapter, name, provider.issuer + path)
    site(outside=OutsideConfig(github=GitHubConfig(client_id=CLIENT_ID, client_secret=CLIENT_SECRET)))
    return provider


def test_github_account_is_somebody_with_its_verified_address(github: Provider) -> None:
    github.github |= {"email": "public@example.org"}
    github.github_emails = [
        {"email": "typed@example.org", "primary": True, "verified": False},
        {"email": "octo@example.org", "primary": False, "verified": True},
    ]
    client = Client()
    page = client.get("/accounts/login/").content.decode()
    assert "Sign in with GitHub" in page
    come_in(client, login="/accounts/github/login/")
    assert who(client) == "octo"
    octo = User.objects.get()
    assert octo.email == "octo@example.org"
    assert list(octo.emailaddress_set.values_list("email", "verified", "primary")) == [("octo@example.org", True, True)]
    assert set(SocialAccount.objects.get().extra_data) <= {"login", "name", "email"}


def test_github_lets_new_people_in_only_where_anybody_may_sign_up(github: Provider, site: Any) -> None:
    site(sign_up_open=False)
    client = Client()
    assert come_in(client, login="/accounts/github/login/").status_code == 403
    assert not User.objects.exists()


def test_github_that_is_away_is_said_to_be(github: Provider) -> None:
    client = Client()
    back = at_provider(begin(client, login="/accounts/github/login/"))
    github.stop()
    away = client.get(back)
    assert away.status_code == 503
    assert "GitHub cannot be reached" in away.content.decode()
