"""Who comes from another place gets a name and an address here, and neither takes over an account that has it."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from allauth.account.models import EmailAddress
from allauth.socialaccount.models import SocialAccount
from django.test import Client

from chatsite.accounts.models import User
from chatsite.accounts.outside import naming
from tests.oidc_provider import Provider
from tests.web.coming_in import CALLBACK, CONNECTIONS, PASSWORD, at_provider, begin, come_in, local, who

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("quick_passwords")]


@pytest.mark.parametrize(
    ("told", "name"),
    [
        ({"preferred_username": "ann@corp.example"}, "ann"),
        ({"preferred_username": "Ann  Lee"}, "Ann_Lee"),
        ({"preferred_username": "Жанна"}, "Жанна"),
        ({"preferred_username": "<b>ann</b>"}, "bannb"),
        ({"preferred_username": "../", "name": "Ann"}, "Ann"),
        ({"preferred_username": "a\x00n\ud83dn", "name": "A\x00nn \ud83d Lee", "given_name": "\x00"}, "ann"),
        ({"preferred_username": ["ann"], "name": None}, "user"),
        ({"preferred_username": "", "email": "ann.lee@corp.example", "email_verified": True}, "ann.lee"),
        ({"preferred_username": "x" * 500}, "x" * 60),
    ],
)
def test_name_is_made_from_the_claims(outside: Any, provider: Provider, told: dict[str, Any], name: str) -> None:
    provider.person = {"sub": "1", **told}
    assert come_in(Client())["Location"] == "/"
    assert User.objects.get().username == name


def test_whose_name_is_taken_chooses_another(outside: Any, provider: Provider) -> None:
    local("ANN")
    client = Client()
    assert come_in(client)["Location"] == "/accounts/3rdparty/signup/"
    page = client.get("/accounts/3rdparty/signup/").content.decode()
    assert "Somebody here is called ann already" in page
    assert 'value="ann2"' in page
    assert 'name="email"' not in page
    again = client.post("/accounts/3rdparty/signup/", {"username": "Ann"})
    assert again.status_code == 200
    assert "already exists" in again.content.decode()
    assert client.post("/accounts/3rdparty/signup/", {"username": "lee"})["Location"] == "/"
    assert who(client) == "lee"


def test_form_for_a_name_is_for_those_who_came(outside: Any) -> None:
    assert Client().get("/accounts/3rdparty/signup/")["Location"] == "/accounts/login/"


def test_unverified_address_is_not_kept_and_claims_nobody_s_account(outside: Any, provider: Provider) -> None:
    outside(link_by_email=True)
    lee = local("lee", "ann@corp.example")
    EmailAddress.objects.update(verified=True)
    for told in ({"email": lee.email, "email_verified": False}, {"email": lee.email}, {}):
        provider.person = {"sub": str(told), "preferred_username": "ann", **told}
        client = Client()
        come_in(client)
        assert who(client) == "ann", told
        ann = User.objects.get(username="ann")
        assert ann.email == ""
        assert not EmailAddress.objects.filter(user=ann).exists()
        ann.delete()


def test_verified_address_of_an_account_here_takes_nothing_over(outside: Any, provider: Provider) -> None:
    """Its owner is sent to sign in here and connect; somebody else goes on without the address."""
    lee = local("lee", "ann@corp.example")
    EmailAddress.objects.update(verified=True)
    provider.person |= {"email": lee.email, "email_verified": True}
    client = Client()
    assert come_in(client)["Location"] == "/accounts/3rdparty/signup/"
    assert who(client) is None
    page = client.get("/accounts/3rdparty/signup/").content.decode()
    assert "already has the address ann@corp.example" in page
    assert f"/accounts/login/?next={CONNECTIONS}" in page
    client.post("/accounts/3rdparty/signup/", {"username": "ann"})
    assert who(client) == "ann"
    assert User.objects.get(username="ann").email == ""
    assert list(EmailAddress.objects.values_list("user__username", flat=True)) == ["lee"]


@pytest.mark.parametrize(("is_verified_here", "name"), [(True, "lee"), (False, None)])
def test_address_links_only_where_set_and_verified_on_both_sides(
    outside: Any, provider: Provider, is_verified_here: bool, name: str | None
) -> None:
    outside(link_by_email=True)
    lee = local("lee", "ann@corp.example")
    EmailAddress.objects.update(verified=is_verified_here)
    provider.person |= {"email": lee.email, "email_verified": True}
    client = Client()
    come_in(client)
    assert who(client) == name
    assert SocialAccount.objects.filter(user=lee).exists() is is_verified_here
    lee.refresh_from_db()
    assert lee.check_password(PASSWORD)


def test_same_subject_of_another_issuer_is_another_person(outside: Any, provider: Provider) -> None:
    come_in(Client())
    with Provider(redirect_uris={CALLBACK}) as other:
        outside(issuer=other.issuer)
        client = Client()
        come_in(client)
        assert who(client) is None  # the name is taken, so they are asked for another
        client.post("/accounts/3rdparty/signup/", {"username": "other"})
    assert User.objects.count() == 2


def test_subject_of_any_length_is_somebody(outside: Any, provider: Provider) -> None:
    provider.person["sub"] = "s" * 255
    for _ in range(2):
        client = Client()
        come_in(client)
        assert who(client) == "ann"


@pytest.mark.django_db(transaction=True)
def test_two_windows_of_a_new_person_make_one_account(outside: Any) -> None:
    clients = [Client(), Client()]
    backs = [at_provider(begin(client)) for client in clients]
    threads = [threading.Thread(target=_get, args=(c, back)) for c, back in zip(clients, backs, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert SocialAccount.objects.count() == 1
    assert {who(client) for client in clients} <= {"ann", None}


def _get(client: Client, path: str) -> None:
    from django.db import connection

    try:
        assert client.get(path).status_code < 500
    finally:
        connection.close()


def test_name_goes_on_counting(outside: Any) -> None:
    for name in ("ann", "ann2", "Ann3", "annabel"):
        local(name)
    assert naming.free("ann") == "ann4"
    assert naming.free("lee") == "lee"
