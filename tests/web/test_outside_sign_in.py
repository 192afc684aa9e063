"""Signing in with an account of another place, against a real provider on loopback that can be told to misbehave."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from allauth.account.models import EmailAddress
from allauth.socialaccount.models import SocialAccount
from django.test import Client

from chatsite.accounts.models import User
from tests.oidc_provider import Fault, Provider
from tests.web.coming_in import CALLBACK, LOGIN, at_provider, begin, come_in, who

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("quick_passwords")]

FALSE = [f for f in Fault if f not in (Fault.BROKEN, Fault.SILENT, Fault.OTHER_NAME, Fault.NO_ENDPOINT)]


def test_new_person_gets_an_account_and_the_same_one_ever_after(outside: Any, provider: Provider) -> None:
    provider.person |= {"email": "Ann@corp.example", "email_verified": True}
    client = Client()
    came = come_in(client, query="&next=/chat/7/")
    assert (came.status_code, came["Location"]) == (302, "/chat/7/")
    ann = User.objects.get()
    assert (ann.username, ann.first_name, ann.last_name, ann.email) == ("ann", "Ann", "Lee", "ann@corp.example")
    assert not ann.has_usable_password()
    assert EmailAddress.objects.get(user=ann).verified
    assert who(client) == "ann"
    client.post("/accounts/logout/")
    assert who(client) is None
    provider.person["preferred_username"] = "ann-lee"  # a new name there makes nobody else of her here
    come_in(client)
    assert who(client) == "ann"
    assert User.objects.count() == 1
    kept = SocialAccount.objects.get().extra_data
    assert kept["sub"] == provider.person["sub"]
    assert set(kept) <= {"iss", "sub", "preferred_username", "name", "email", "email_verified"}


def test_question_has_state_nonce_and_pkce_and_asks_for_no_more_than_was_set(outside: Any, provider: Provider) -> None:
    outside(scopes=("openid", "email"))
    sent = Client().post(f"{LOGIN}?process=login&scope=admin&auth_params=prompt%3Dnone")
    query = {name: values[0] for name, values in parse_qs(urlsplit(sent["Location"]).query).items()}
    assert set(query["scope"].split()) == {"openid", "email"}
    assert query["redirect_uri"] == CALLBACK
    assert query["code_challenge_method"] == "S256"
    assert query["state"]
    assert query["nonce"]
    assert "prompt" not in query


def test_callback_is_https_behind_a_tls_proxy_whatever_the_proxy_says(outside: Any, settings: Any) -> None:
    settings.ACCOUNT_DEFAULT_HTTP_PROTOCOL = "https"  # as BEHIND_TLS sets it
    sent = begin(Client())
    assert parse_qs(urlsplit(sent["Location"]).query)["redirect_uri"] == [CALLBACK.replace("http:", "https:")]


def test_link_from_elsewhere_leads_to_a_button_first(outside: Any) -> None:
    page = Client().get(LOGIN).content.decode()
    assert "Sign in with Corp" in page
    assert "Continue" in page
    forged = Client(enforce_csrf_checks=True).post(LOGIN)
    assert forged.status_code == 403


@pytest.mark.parametrize("fault", FALSE)
def test_what_does_not_hold_lets_nobody_in(outside: Any, provider: Provider, fault: Fault) -> None:
    client = Client()
    back = at_provider(begin(client))
    provider.fault = fault
    refused = client.get(back)
    assert refused.status_code == 401, fault.value
    assert "could not be trusted" in refused.content.decode()
    assert who(client) is None
    assert not User.objects.exists()


@pytest.mark.parametrize("fault", [Fault.OTHER_NAME, Fault.NO_ENDPOINT])
def test_provider_that_names_itself_otherwise_is_not_even_asked(outside: Any, provider: Provider, fault: Fault) -> None:
    provider.fault = fault
    refused = begin(Client())
    assert refused.status_code == 401
    assert "could not be trusted" in refused.content.decode()


def test_wrong_secret_is_refused_there_and_said_here(outside: Any, provider: Provider) -> None:
    outside(client_secret="another")
    client = Client()
    assert come_in(client).status_code == 401
    assert provider.refusals == ["invalid_client"]
    assert who(client) is None


@pytest.mark.parametrize("how", [Fault.BROKEN, Fault.SILENT, None])
def test_provider_that_is_away_is_said_to_be(
    outside: Any, provider: Provider, settings: Any, how: Fault | None
) -> None:
    settings.SOCIALACCOUNT_REQUESTS_TIMEOUT = 0.5
    client = Client()
    back = at_provider(begin(client))
    provider.fault = how
    if how is None:
        provider.stop()
        assert begin(Client()).status_code == 503
    away = client.get(back)
    assert away.status_code == 503
    assert "Corp cannot be reached" in away.content.decode()
    assert int(away["Retry-After"]) > 0
    assert who(client) is None


def test_declined_consent_is_a_page_and_changes_nothing(outside: Any) -> None:
    client = Client()
    declined = client.get(at_provider(begin(client), "deny"), follow=True)
    assert declined.status_code == 200
    assert "You declined" in declined.content.decode()
    assert who(client) is None
    assert not User.objects.exists()


@pytest.mark.parametrize("spoil", ["state", "browser", "again", "bare"])
def test_answer_to_no_question_of_this_browser_is_refused(outside: Any, spoil: str) -> None:
    client = Client()
    back = at_provider(begin(client))
    if spoil == "state":
        back = back.replace("state=", "state=x")
    elif spoil == "browser":
        client = Client()
    elif spoil == "bare":
        back = urlsplit(back).path
    else:
        assert client.get(back).status_code == 302
        client.post("/accounts/logout/")
    refused = client.get(back)
    assert refused.status_code == 400
    assert "Begin again" in refused.content.decode()
    assert who(client) is None


def test_answer_of_another_person_s_sign_in_signs_nobody_into_it(outside: Any, provider: Provider) -> None:
    """Somebody's own code, put under the state of their victim: PKCE says that it belongs to another question."""
    attacker, victim = Client(), Client()
    code = parse_qs(urlsplit(at_provider(begin(attacker))).query)["code"][0]
    state = parse_qs(urlsplit(at_provider(begin(victim))).query)["state"][0]
    assert victim.get(CALLBACK, {"code": code, "state": state}).status_code == 401
    assert provider.refusals == ["invalid_grant"]
    assert who(victim) is None


def test_inactive_person_is_told_so(outside: Any) -> None:
    come_in(Client())
    User.objects.update(is_active=False)
    client = Client()
    assert come_in(client)["Location"] == "/accounts/inactive/"
    assert who(client) is None
