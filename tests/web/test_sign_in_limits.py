"""Guessing passwords gets slower and slower for who guesses, and locks nobody else out, nor an owner at their own
browser. Signing in and signing up tell nobody who has an account."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import redis as redis_py
from allauth.account.models import EmailAddress
from django.contrib.auth.hashers import MD5PasswordHasher
from django.contrib.auth.models import AnonymousUser
from django.core import mail, signing
from django.core.cache import cache
from django.test import Client, RequestFactory

from chatsite.accounts import attempts, known_browsers
from chatsite.accounts.models import User
from tests.oidc_provider import Provider
from tests.web import enrolling
from tests.web.coming_in import come_in, who

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("redis", "quick_passwords")]

FREE_TRIES = 2  # here, that the tests be quick
ALL_FREE = FREE_TRIES + 1  # and the one that begins the first wait


@pytest.fixture(autouse=True)
def few_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 3 <= attempts.FREE_TRIES <= 10
    monkeypatch.setattr(attempts, "FREE_TRIES", FREE_TRIES)


def guess(name: str = "ann", *, client: Client | None = None, address: str = "203.0.113.7", password: str = "x") -> Any:
    form = {"login": name, "password": password}
    return (client or Client()).post("/accounts/login/", form, REMOTE_ADDR=address)


def enter(client: Client | None = None, name: str = "ann", **where: str) -> Any:
    return guess(name, client=client, password=enrolling.PASSWORD, **where)


def let_waits_pass(redis: redis_py.Redis) -> int:
    """How many there were."""
    waits = redis.keys("*sign-in:*:wait")
    return int(redis.delete(*waits)) if waits else 0


@pytest.fixture
def own(ann: User) -> Client:
    """A browser in which ann has signed in and out again."""
    client = Client()
    assert enter(client).status_code == 302
    client.post("/accounts/logout/")
    assert who(client) is None
    return client


# -- waits


def test_more_than_thirty_failures_of_others_block_nobody_behind_the_same_address(ann: User) -> None:
    for number in range(33):
        assert guess(f"person{number % 9}").status_code in (200, 429)
    assert enter().status_code == 302


def test_after_a_few_failures_a_name_waits_and_is_told_how_long(ann: User) -> None:
    answers = [guess() for _ in range(ALL_FREE)]
    assert {answer.status_code for answer in answers} == {200}
    refused = enter()
    assert refused.status_code == 429
    assert 1 <= int(refused["Retry-After"]) <= attempts.FIRST_WAIT_SECONDS
    page = refused.content.decode()
    assert 'value="ann"' in page
    assert "The next one may be in" in page


def test_waits_double_to_a_longest_one_and_end_with_the_right_password(ann: User, redis: redis_py.Redis) -> None:
    for _ in range(ALL_FREE):
        guess()
    told = []
    for _ in range(8):
        told.append(int(guess()["Retry-After"]))
        assert let_waits_pass(redis) == 1
        assert guess().status_code == 200
    first, longest = attempts.FIRST_WAIT_SECONDS, attempts.LONGEST_WAIT_SECONDS
    wanted = [min(first * 2**number, longest) for number in range(8)]
    assert wanted[-1] == longest
    assert all(seconds - 5 <= said <= seconds for said, seconds in zip(told, wanted, strict=True))
    let_waits_pass(redis)
    assert enter().status_code == 302
    assert {guess().status_code for _ in range(ALL_FREE)} == {200}


def test_tries_that_are_refused_make_no_wait_longer_and_hash_nothing(ann: User, counted: Counted) -> None:
    for _ in range(ALL_FREE):
        guess()
    told = [int(guess()["Retry-After"]) for _ in range(5)]
    assert max(told) <= attempts.FIRST_WAIT_SECONDS
    with counted() as hashes:
        enter()
    assert hashes() == 0


def test_who_guesses_at_one_address_keeps_nobody_out_at_another(ann: User) -> None:
    for _ in range(ALL_FREE + 3):
        guess()
    assert guess().status_code == 429
    assert enter(address="198.51.100.4").status_code == 302


def test_addresses_of_one_ipv6_network_are_one(ann: User) -> None:
    for number in range(ALL_FREE):
        guess(address=f"2001:db8::{number}")
    assert guess(address="2001:db8::ffff").status_code == 429
    assert guess(address="2001:db8:1::1").status_code == 200


@pytest.mark.parametrize("name", ["ANN", " ann ", "ａｎｎ"])
def test_another_way_to_write_a_name_is_no_other_name(ann: User, name: str) -> None:
    for _ in range(ALL_FREE):
        guess()
    assert guess(name).status_code == 429


def test_tries_at_once_are_no_more_than_tries_one_by_one(rf: RequestFactory) -> None:
    passed: list[attempts.Try] = []

    def begin() -> None:
        request = rf.post("/accounts/login/", REMOTE_ADDR="203.0.113.7")
        request.user = AnonymousUser()
        together.wait()
        try:
            passed.append(attempts.begin(request, "ann"))
        except attempts.TooManyTries:
            return

    together = threading.Barrier(24)
    threads = [threading.Thread(target=begin) for _ in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(passed) == ALL_FREE


def test_confirming_ones_password_waits_too(page: Client) -> None:
    answers = [page.post("/accounts/reauthenticate/", {"password": "wrong"}) for _ in range(ALL_FREE + 1)]
    assert [answer.status_code for answer in answers] == [200] * ALL_FREE + [429]
    assert int(answers[-1]["Retry-After"]) <= attempts.FIRST_WAIT_SECONDS


def test_limits_of_allauth_say_when_to_come_again(client: Client, settings: Any) -> None:
    settings.ACCOUNT_RATE_LIMITS = {"login": "1/m/ip"}
    guess(client=client)
    refused = guess(client=client)
    assert (refused.status_code, refused["Retry-After"]) == (429, "60")


# -- wide caps


def test_one_name_guessed_at_from_many_addresses_is_capped(
    ann: User, own: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "MAX_PER_NAME", 6)
    answers = [guess(address=f"198.51.100.{number}") for number in range(7)]
    assert [answer.status_code for answer in answers] == [200] * 6 + [429]
    assert 1 <= int(answers[-1]["Retry-After"]) <= attempts.NAME_SECONDS + 1
    assert enter(address="192.0.2.1").status_code == 429  # a new browser has to wait
    assert enter(own, address="192.0.2.1").status_code == 302


def test_many_names_guessed_at_from_one_address_are_capped(
    ann: User, own: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "MAX_PER_ADDRESS", 6)
    answers = [guess(f"person{number}") for number in range(7)]
    assert [answer.status_code for answer in answers] == [200] * 6 + [429]
    assert enter(address="198.51.100.4").status_code == 302
    assert enter(own).status_code == 302


def test_signing_in_well_uses_no_cap_up(ann: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "MAX_PER_ADDRESS", 2)
    monkeypatch.setattr(attempts, "MAX_PER_NAME", 2)
    assert {enter().status_code for _ in range(5)} == {302}


# -- known browsers


def test_the_owners_browser_is_spared_while_others_guess(own: Client) -> None:
    for _ in range(ALL_FREE + 2):
        guess()
    assert guess().status_code == 429
    assert enter(own).status_code == 302


def test_a_known_browser_has_tries_of_its_own_and_no_more(own: Client) -> None:
    answers = [guess(client=own, address=f"198.51.100.{number}") for number in range(ALL_FREE + 1)]
    assert [answer.status_code for answer in answers] == [200] * ALL_FREE + [429]


def test_a_browser_is_known_at_its_own_account_alone(own: Client) -> None:
    User.objects.create_user("bea", password=enrolling.PASSWORD)
    for _ in range(ALL_FREE):
        guess("bea")
    assert enter(own, "bea").status_code == 429
    assert enter(own, "ann").status_code == 302


@pytest.mark.parametrize("how", ["nonsense", "another salt", "too long", "no dictionary of ours"])
def test_a_forged_cookie_makes_no_browser_known(ann: User, how: str) -> None:
    client = Client()
    client.cookies["known"] = {
        "nonsense": "x:y:z",
        "another salt": signing.dumps({"a": "b"}, salt="other"),
        "too long": "x" * 10_000,
        "no dictionary of ours": signing.dumps({"a": "b"}, salt=known_browsers.SALT),
    }[how]
    for _ in range(ALL_FREE):
        guess()
    assert enter(client).status_code == 429


def test_the_cookie_names_nobody_and_is_out_of_reach_of_scripts(ann: User, settings: Any) -> None:
    client = Client()
    enter(client)
    cookie = client.cookies["known"]
    assert (cookie["httponly"], cookie["samesite"], cookie["secure"]) == (True, "Lax", "")
    assert str(ann.pk) not in str(signing.loads(cookie.value, salt=known_browsers.SALT))
    settings.BEHIND_TLS = True
    client = Client()
    enter(client)
    assert client.cookies["__Host-known"]["secure"]


def test_a_browser_remembers_a_few_accounts_and_keeps_its_marks(ann: User) -> None:
    client = Client()
    names = [f"person{number}" for number in range(known_browsers.MAX_ACCOUNTS)]
    for name in names:
        User.objects.create_user(name, password=enrolling.PASSWORD)
    for name in ("ann", *names):
        assert enter(client, name).status_code == 302
        client.post("/accounts/logout/")
    marks = signing.loads(client.cookies["known"].value, salt=known_browsers.SALT)
    assert len(marks) == known_browsers.MAX_ACCOUNTS
    enter(client, names[-1])
    assert signing.loads(client.cookies["known"].value, salt=known_browsers.SALT) == marks


def test_counters_in_the_cache_name_nobody(ann: User, redis: redis_py.Redis) -> None:
    guess()
    found = [key.decode() for key in redis.keys("*sign-in:*")]
    assert len(found) == 3
    assert not any("ann" in key.split("sign-in:")[1] or "203.0" in key for key in found)


@pytest.mark.parametrize("planted", [b"\x80\x05pickled.", b"-5", b"99999999999"])
def test_counters_that_are_none_count_anew(ann: User, redis: redis_py.Redis, planted: bytes) -> None:
    guess()
    redis.mset(dict.fromkeys(redis.keys("*sign-in:*"), planted))
    assert guess().status_code in (200, 429)
    assert cache.get("nothing") is None


# -- who has an account


class Hasher(MD5PasswordHasher):
    """Counts what is costly with a real one."""

    num_hashes: ClassVar[int] = 0

    def encode(self, password: str, salt: str) -> str:
        Hasher.num_hashes += 1
        return super().encode(password, salt)


class Counting:
    def __enter__(self) -> Callable[[], int]:
        before = Hasher.num_hashes
        return lambda: Hasher.num_hashes - before

    def __exit__(self, *_: object) -> None:
        pass


Counted = Callable[[], Counting]


@pytest.fixture
def counted(settings: Any) -> Counted:
    settings.PASSWORD_HASHERS = [f"{__name__}.Hasher"]
    return Counting


def test_a_wrong_password_costs_as_much_as_a_name_that_nobody_has(counted: Counted) -> None:
    User.objects.create_user("bea", password=enrolling.PASSWORD)
    User.objects.create_user("without")
    User.objects.create_user("away", password=enrolling.PASSWORD, is_active=False)
    costs = {}
    for name in ("bea", "nobody", "without", "away"):
        with counted() as hashes:
            answer = guess(name)
        costs[name] = (hashes(), answer.status_code, b"not correct" in answer.content)
    assert len(set(costs.values())) == 1, costs
    assert costs["bea"][0] > 0


def sign_up(email: str, name: str) -> tuple[Client, Any]:
    client = Client()
    form = {"username": name, "email": email, "password1": enrolling.PASSWORD, "password2": enrolling.PASSWORD}
    return client, client.post("/accounts/signup/", form)


@pytest.fixture
def bea() -> User:
    """Somebody whose address is verified."""
    bea = User.objects.create_user("bea", "bea@example.org", enrolling.PASSWORD)
    EmailAddress.objects.create(user=bea, email="bea@example.org", primary=True, verified=True)
    return bea


@pytest.mark.parametrize("sends_mail", [False, True], ids=["without mail", "with mail"])
def test_signing_up_tells_nobody_that_an_address_has_an_account(
    bea: User, settings: Any, sends_mail: bool, counted: Counted
) -> None:
    settings.EMAIL_HOST = "mail.example.org" if sends_mail else ""
    settings.ACCOUNT_EMAIL_VERIFICATION = "optional" if sends_mail else "none"
    seen = []
    for email, name in (("new@example.org", "newone"), ("BEA@example.org", "another")):
        mail.outbox.clear()
        with counted() as hashes:
            client, answer = sign_up(email, name)
        home = client.get("/accounts/email/").content.decode().replace(email.lower(), "EMAIL").replace(name, "NAME")
        said = (answer.status_code, answer["Location"], who(client) is not None, hashes(), len(mail.outbox))
        seen.append((said, home.count("EMAIL"), home.count("already")))
    assert seen[0] == seen[1]
    assert User.objects.get(username="another").emailaddress_set.get().verified is False
    assert EmailAddress.objects.get(user=bea).verified


def test_changing_ones_address_tells_nobody_that_it_has_an_account(bea: User, page: Client) -> None:
    answers = []
    for email in ("new@example.org", "bea@example.org"):
        added = page.post("/accounts/email/", {"email": email, "action_add": ""}, follow=True)
        answers.append((added.status_code, added.redirect_chain, b"already" in added.content))
    assert answers[0] == answers[1]
    assert EmailAddress.objects.get(email="bea@example.org", verified=True).user == bea


def test_asking_for_a_new_password_tells_nobody_that_an_address_has_an_account(bea: User) -> None:
    answers = []
    for email in ("bea@example.org", "nobody@example.org"):
        asked = Client().post("/accounts/password/reset/", {"email": email}, follow=True)
        answers.append((asked.status_code, asked.redirect_chain, asked.content.count(b"<p")))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("has_owner", [True, False], ids=["beside the owner's", "before the owner"])
def test_an_account_made_with_somebodys_address_gets_nothing_of_theirs(
    outside: Callable[..., None], provider: Provider, bea: User, has_owner: bool
) -> None:
    """Nor is a person from outside led into it, where accounts are found by address."""
    outside(link_by_email=True)
    if not has_owner:
        bea.delete()
    sign_up("bea@example.org", "another")
    provider.person |= {"email": "bea@example.org", "email_verified": True}
    client = Client()
    come_in(client)
    assert who(client) == "bea" if has_owner else who(client) != "another"
    assert not User.objects.get(username="another").socialaccount_set.exists()
