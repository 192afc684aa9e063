"""Signing in with an account of another place, against a real provider on loopback that can be told to misbehave."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from allauth.account.models import EmailAddress
from allauth.mfa.totp.internal import auth as totp
from allauth.socialaccount.models import SocialAccount
from allauth.socialaccount.providers.github.views import GitHubOAuth2Adapter
from django.contrib.auth.models import Group
from django.http import HttpResponse
from django.test import Client

from chatsite.accounts.models import User
from chatsite.accounts.outside import groups, naming
from chatsite.outside_config import GitHubConfig, OpenIDConfig, OutsideConfig
from tests.oidc_provider import CLIENT_ID, CLIENT_SECRET, Fault, Provider

pytestmark = pytest.mark.django_db

LOGIN = "/accounts/oidc/login/"
CALLBACK = "http://testserver/accounts/oidc/login/callback/"
FALSE = [f for f in Fault if f not in (Fault.BROKEN, Fault.SILENT, Fault.OTHER_NAME, Fault.NO_ENDPOINT)]
CONNECTIONS = "/accounts/3rdparty/"
PASSWORD = "correct horse"


@pytest.fixture(autouse=True)
def quick_passwords(settings: Any) -> None:
    """A hash that is slow on purpose is tested elsewhere; here it would be most of the time."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider(redirect_uris={CALLBACK}) as provider:
        yield provider


@pytest.fixture
def outside(site: Callable[..., None], redis: Any, provider: Provider) -> Callable[..., None]:
    """Sets the site up with that provider; again with other values of `OpenIDConfig`, or `None` for none."""

    def set_up(**values: Any) -> None:
        config = OpenIDConfig(
            **{"issuer": provider.issuer, "client_id": CLIENT_ID, "client_secret": CLIENT_SECRET, "name": "Corp"}
            | values
        )
        site(outside=OutsideConfig(openid=config))

    set_up()
    return set_up


def begin(client: Client, process: str = "login", query: str = "", login: str = LOGIN) -> HttpResponse:
    return client.post(f"{login}?process={process}{query}")


def at_provider(sent: HttpResponse, answer: str = "allow") -> str:
    """What a person does there; the path and query that their browser is sent back to."""
    assert sent.status_code == 302, sent.content.decode()
    question = urlsplit(sent["Location"])
    with httpx.Client(verify=False) as browser:  # which takes a while to read certificates that nobody here has
        page = browser.get(sent["Location"])
        assert page.status_code == 200, page.text
        consent = f"{question.scheme}://{question.netloc}/consent?{question.query}"
        back = browser.post(consent, data={"answer": answer})
    assert back.status_code == 303, back.text
    where = urlsplit(back.headers["Location"])
    assert f"{where.scheme}://{where.netloc}" == "http://testserver"
    return f"{where.path}?{where.query}"


def come_in(client: Client, process: str = "login", **options: str) -> HttpResponse:
    return client.get(at_provider(begin(client, process, **options)))


def who(client: Client) -> str | None:
    """The name of who is signed in, asked of the session itself."""
    pk = client.session.get("_auth_user_id")
    return User.objects.get(pk=pk).username if pk else None


def local(name: str, email: str = "", **values: Any) -> User:
    """Somebody with a password; an address is as little verified as one that was only typed."""
    user = User.objects.create_user(name, email, PASSWORD, **values)
    if email:
        EmailAddress.objects.create(user=user, email=email, primary=True)
    return user


def signed_in(user: User) -> Client:
    client = Client()
    assert client.post("/accounts/login/", {"login": user.username, "password": PASSWORD}).status_code == 302
    return client


# -- coming in


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


# -- names and addresses


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


# -- who may come


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


# -- connecting and letting go


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


# -- groups


@pytest.mark.parametrize(
    ("claims", "claim", "names"),
    [
        ({"groups": ["b", "a", "b"]}, "groups", ["a", "b"]),
        ({"groups": "only"}, "groups", ["only"]),
        ({"groups": [1, None, {"x": 1}, "a"]}, "groups", ["a"]),
        ({"groups": 7}, "groups", []),
        ({"groups": ["a\x00", "b"]}, "groups", ["b"]),
        ({"groups": {"a": 1}}, "groups", []),
        ({}, "groups", []),
        ({"realm_access": {"roles": ["a"]}}, "realm_access.roles", ["a"]),
        ({"realm_access": ["a"]}, "realm_access.roles", []),
        ({"https://corp.example/groups": ["a"]}, "https://corp.example/groups", ["a"]),
    ],
)
def test_groups_are_read_from_the_claim(claims: dict[str, Any], claim: str, names: list[str]) -> None:
    assert groups.named(claims, claim) == names


def test_groups_follow_the_claim_at_each_sign_in(outside: Any, provider: Provider) -> None:
    for name in ("writers", "readers", "local"):
        Group.objects.create(name=name)
    before = set(Group.objects.values_list("name", flat=True))

    def told(*names: str) -> tuple[set[str], bool]:
        provider.person["groups"] = list(names)
        client = Client()
        come_in(client)
        assert who(client) == "ann"
        ann = User.objects.get(username="ann")
        return set(ann.groups.values_list("name", flat=True)), ann.is_staff

    assert told("writers") == (set(), False)  # no claim is set, so nothing is touched
    User.objects.get(username="ann").groups.add(Group.objects.get(name="local"))
    outside(groups_claim="groups", staff_group="ops")
    assert told("writers", "unknown here") == ({"writers"}, False)
    assert told("readers", "ops") == ({"readers"}, True)
    assert told("readers") == ({"readers"}, False)
    del provider.person["groups"]
    come_in(Client())
    assert not User.objects.get(username="ann").groups.exists()
    assert set(Group.objects.values_list("name", flat=True)) == before


def test_groups_without_a_staff_group_leave_staff_alone(outside: Any, provider: Provider) -> None:
    outside(groups_claim="groups")
    come_in(Client())
    User.objects.update(is_staff=True)
    come_in(Client())
    assert User.objects.get().is_staff


def test_last_active_superuser_stays_staff(outside: Any, provider: Provider) -> None:
    outside(groups_claim="groups", staff_group="ops")
    come_in(Client())
    User.objects.update(is_staff=True, is_superuser=True)
    local("gone", is_staff=True, is_superuser=True, is_active=False)
    local("powerless", is_superuser=True)
    come_in(Client())
    assert User.objects.get(username="ann").is_staff
    local("sam", is_staff=True, is_superuser=True)
    come_in(Client())
    assert not User.objects.get(username="ann").is_staff


def test_signing_in_with_a_password_touches_no_group(outside: Any) -> None:
    outside(groups_claim="groups", staff_group="ops")
    lee = local("lee", is_staff=True)
    lee.groups.add(Group.objects.create(name="local"))
    SocialAccount.objects.create(user=lee, provider="oidc", uid="1")
    signed_in(lee)
    lee.refresh_from_db()
    assert lee.is_staff
    assert lee.groups.count() == 1


# -- GitHub


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
