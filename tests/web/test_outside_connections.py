"""Accounts of other places that a person connects to theirs and lets go, but never the last way in."""

from __future__ import annotations

from typing import Any

import pytest
from allauth.socialaccount.models import SocialAccount
from django.test import Client

from chatsite.accounts.models import User
from tests.oidc_provider import Provider
from tests.web.coming_in import CONNECTIONS, PASSWORD, come_in, local, signed_in, who

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("quick_passwords")]


def test_connected_account_lets_its_person_in_and_only_them(outside: Any, provider: Provider) -> None:
    provider.person |= {"email": "other@corp.example", "email_verified": True}
    del provider.person["preferred_username"]
    lee = signed_in(local("lee", "lee@example.org"))
    assert come_in(lee, "connect")["Location"] == CONNECTIONS
    assert "other@corp.example" in lee.get(CONNECTIONS).content.decode()
    assert User.objects.get().email == "lee@example.org"
    client = Client()
    come_in(client)
    assert who(client) == "lee"
    bob = signed_in(local("bob"))
    told = bob.get(come_in(bob, "connect")["Location"]).content.decode()
    assert "already connected to a different account" in told
    assert SocialAccount.objects.get().user.username == "lee"


def test_nobody_connects_without_being_signed_in(outside: Any) -> None:
    local("lee")
    client = Client()
    assert come_in(client, "connect")["Location"] == CONNECTIONS
    assert client.get(CONNECTIONS)["Location"].startswith("/accounts/login/")
    assert not SocialAccount.objects.exists()


def test_last_way_in_is_kept(outside: Any, site: Any) -> None:
    client = Client()
    come_in(client)
    ann, account = User.objects.get(), SocialAccount.objects.get()
    assert "Set one" in client.get(CONNECTIONS).content.decode()

    def let_go() -> str:
        return client.post(CONNECTIONS, {"account": account.pk}, follow=True).content.decode()

    assert "only way to sign in" in let_go()
    SocialAccount.objects.create(user=ann, provider="github", uid="7")  # that provider is not set up here
    assert "only way to sign in" in let_go()
    ann.set_password(PASSWORD)
    ann.save()
    client.force_login(ann)
    site(password_sign_in=False)
    assert "only way to sign in" in let_go()
    assert SocialAccount.objects.filter(pk=account.pk).exists()
    site(password_sign_in=True)
    let_go()
    assert not SocialAccount.objects.filter(pk=account.pk).exists()


def test_account_of_a_provider_that_is_gone_can_be_let_go(outside: Any) -> None:
    lee = local("lee")
    gone = SocialAccount.objects.create(user=lee, provider="github", uid="7", extra_data={"login": "octo"})
    client = signed_in(lee)
    page = client.get(CONNECTIONS).content.decode()
    assert "octo" in page
    assert "switched off" in page
    assert client.post(CONNECTIONS, {"account": gone.pk}).status_code == 302
    assert not SocialAccount.objects.exists()


def test_nobody_lets_go_of_another_s(outside: Any) -> None:
    lee, bob = local("lee"), local("bob")
    account = SocialAccount.objects.create(user=lee, provider="oidc", uid="1")
    assert signed_in(bob).post(CONNECTIONS, {"account": account.pk}).status_code == 200
    assert SocialAccount.objects.exists()
    assert Client().post(CONNECTIONS, {"account": account.pk})["Location"].startswith("/accounts/login/")
