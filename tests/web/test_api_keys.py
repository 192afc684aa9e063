"""API keys: made, shown once, named and revoked by their owners. What `/v1` makes of them is in `test_key_scopes`."""

from __future__ import annotations

import datetime
import re
import threading
import uuid
from collections.abc import Callable
from typing import Any

import pytest
import redis as redis_py
from django.db import connection
from django.test import Client
from django.utils import timezone

from chatsite.accounts.models import KEY_PREFIX, SCOPES, ApiKey, User
from chatsite.api import keys
from chatsite.api.authentication import authenticate
from chatsite.api.keys import State
from chatsite.rules.models import SiteRules
from tests.web.test_pages import Page, signed_in

PASSWORD = "correct horse 7"
SECRET = re.compile(rf"{KEY_PREFIX}[\w-]{{43}}")
PAGE = "/account/keys/"


@pytest.fixture
def owner(alice: User, site: Callable[..., None], redis: redis_py.Redis) -> Client:
    """Signed in, and asked for the password a moment ago."""
    alice.set_password(PASSWORD)
    alice.save()
    client = signed_in(alice)
    assert client.post("/accounts/reauthenticate/", {"password": PASSWORD}).status_code == 302
    return client


def typed(**fields: Any) -> dict[str, Any]:
    return {"name": "my script", "scopes": ["chat"], "days": "30", "token": str(uuid.uuid4()), **fields}


def rule(days: int | None) -> None:
    SiteRules.objects.update_or_create(id=1, defaults={"key_days": days})


def aged(key: ApiKey, days: float) -> None:
    ApiKey.objects.filter(pk=key.pk).update(created_at=timezone.now() - datetime.timedelta(days=days))


def offered(client: Client) -> list[str]:
    return [
        a["value"] or "" for tag, a in Page(client.get(PAGE).content).elements if tag == "option" and a.get("value")
    ]


# -- making one


def test_page_makes_a_key_that_works_and_shows_it_once(owner: Client, alice: User) -> None:
    token = Page(owner.get(PAGE).content).value("input", "value", name="token")
    made = owner.post(PAGE, typed(token=token))
    page = made.content.decode()
    (secret,) = set(SECRET.findall(page))
    assert made.status_code == 200
    assert "no-store" in made["Cache-Control"]
    assert "cannot be shown again" in page
    assert "curl http://testserver/v1/chat/completions" in page
    key = authenticate(f"Bearer {secret}", needs="chat")
    assert (key.user, key.name, key.scopes) == (alice, "my script", "chat")
    assert key.expires_at is not None
    assert round((key.expires_at - timezone.now()).total_seconds() / 86_400) == 30
    again = owner.get(PAGE).content.decode()
    assert "my script" in again
    assert key.shown in again
    assert not SECRET.search(again)
    assert secret not in str(dict(owner.session))


def test_same_form_again_makes_nothing_and_shows_no_secret(owner: Client) -> None:
    form = typed()
    assert owner.post(PAGE, form).status_code == 200
    repeat = owner.post(PAGE, {**form, "name": "another"})
    page = repeat.content.decode()
    assert repeat.status_code == 409
    assert "was made already" in page
    assert "my script" in page
    assert not SECRET.search(page)
    assert ApiKey.objects.count() == 1
    assert Page(repeat.content).value("input", "value", name="token") != form["token"]


def test_same_form_of_two_people_makes_two_keys(owner: Client, alice: User, bob: User, redis: Any) -> None:
    form = typed()
    owner.post(PAGE, form)
    key, _ = keys.create(bob, "mine", scopes=["chat"], token=uuid.UUID(form["token"]))
    assert set(ApiKey.objects.values_list("user_id", flat=True)) == {alice.pk, bob.pk}
    assert keys.keys_of(bob).get() == key


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"name": " "}, "This field is required."),
        ({"name": "x" * 81}, "at most 80 characters"),
        ({"scopes": []}, "choose at least one"),
        ({"scopes": ["chat", "root"]}, "root is not one of the available choices"),
        ({"days": "soon"}, "Choose when the key expires."),
        ({"days": "0"}, "1 to 3650 days"),
        ({"days": "3651"}, "1 to 3650 days"),
        ({"days": ""}, "This field is required."),
    ],
)
def test_what_cannot_be_made_is_said_and_what_was_typed_stays(owner: Client, fields: dict[str, Any], said: str) -> None:
    refused = owner.post(PAGE, typed(**{"name": "kept name", **fields}))
    assert refused.status_code == 400
    assert said in refused.content.decode()
    assert "name" in fields or 'value="kept name"' in refused.content.decode()
    assert not ApiKey.objects.exists()


def test_one_person_has_at_most_fifty_keys_that_count(alice: User, bob: User) -> None:
    made = [keys.create(alice, str(number), scopes=["chat"])[0] for number in range(keys.MAX_LIVE_KEYS)]
    with pytest.raises(keys.KeyRefused, match="50 keys"):
        keys.create(alice, "one more", scopes=["chat"])
    keys.create(bob, "his own", scopes=["chat"])
    keys.revoke(alice, made[0].pk)
    keys.create(alice, "instead", scopes=["chat"])
    with pytest.raises(keys.KeyRefused):
        keys.create(alice, "one more", scopes=["chat"])
    ApiKey.objects.filter(pk=made[1].pk).update(expires_at=timezone.now())
    aged(made[2], 31)
    keys.create(alice, "for the expired one", scopes=["chat"])
    rule(30)
    keys.create(alice, "for the old one", scopes=["chat"], days=1)


def test_last_place_goes_to_one_of_two_that_ask_at_once(alice: User) -> None:
    for number in range(keys.MAX_LIVE_KEYS - 1):
        keys.create(alice, str(number), scopes=["chat"])
    refused: list[str] = []

    def ask() -> None:
        try:
            keys.create(alice, "last", scopes=["chat"])
        except keys.KeyRefused as refusal:
            refused.append(refusal.message)
        finally:
            connection.close()

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 3
    assert ApiKey.objects.count() == keys.MAX_LIVE_KEYS


# -- recent authentication


def test_making_a_key_asks_for_the_password_and_goes_on_with_what_was_typed(alice: User, redis: Any, site: Any) -> None:
    alice.set_password(PASSWORD)
    alice.save()
    client = signed_in(alice)
    assert client.get(PAGE).status_code == 200
    asked = client.post(PAGE, typed())
    assert (asked.status_code, asked["Location"]) == (302, f"/accounts/reauthenticate/?next={PAGE.replace('/', '%2F')}")
    confirm = {"password": "wrong", "next": PAGE}
    assert client.post("/accounts/reauthenticate/", confirm).status_code == 200
    assert not ApiKey.objects.exists()
    made = client.post("/accounts/reauthenticate/", {**confirm, "password": PASSWORD})
    assert made.status_code == 200
    assert SECRET.search(made.content.decode())
    assert f'action="{PAGE}"' in made.content.decode()  # though this answer has another address
    reloaded = client.post("/accounts/reauthenticate/", {**confirm, "password": PASSWORD})
    assert (reloaded.status_code, reloaded["Location"]) == (302, PAGE)
    assert ApiKey.objects.get().name == "my script"


def test_who_has_no_password_here_signs_in_again(alice: User, redis: Any, site: Any) -> None:
    alice.set_unusable_password()
    alice.save()
    client = signed_in(alice)
    refused = client.post(PAGE, typed())
    assert refused.status_code == 403
    assert "sign out and in again" in refused.content.decode()
    assert 'value="my script"' in refused.content.decode()
    session = client.session
    session["account_authentication_methods_user"] = str(alice.pk)  # as a sign-in writes it
    for seconds_ago, status in ((301, 403), (299, 200)):
        at = timezone.now().timestamp() - seconds_ago
        session["account_authentication_methods"] = [{"method": "socialaccount", "at": at}]
        session.save()
        assert client.post(PAGE, typed()).status_code == status
    assert ApiKey.objects.count() == 1


# -- how long one counts


@pytest.mark.parametrize(
    ("days", "choices"),
    [
        (None, ["7", "30", "90", "365", "never"]),
        (400, ["7", "30", "90", "365"]),
        (365, ["7", "30", "90", "365"]),
        (45, ["7", "30", "45"]),
        (30, ["7", "30"]),
        (3, ["3"]),
    ],
)
def test_longer_than_the_rule_is_neither_offered_nor_taken(owner: Client, days: int | None, choices: list[str]) -> None:
    rule(days)
    assert [each for each in offered(owner) if each in choices or each == "never"] == choices
    if days is None:
        assert owner.post(PAGE, typed(days="never")).status_code == 200
        assert ApiKey.objects.get().expires_at is None
        return
    for longer in ("never", str(days + 1)):
        refused = owner.post(PAGE, typed(days=longer))
        assert refused.status_code == 400
        assert f"On this site a key counts for {days} days at most." in refused.content.decode()
    assert not ApiKey.objects.exists()
    assert owner.post(PAGE, typed(days=str(days))).status_code == 200


def test_keys_older_than_a_new_rule_are_refused_from_then_on(alice: User, owner: Client) -> None:
    old, secret = keys.create(alice, "old", scopes=SCOPES)
    _, young_secret = keys.create(alice, "young", scopes=SCOPES)
    aged(old, 8)
    assert authenticate(f"Bearer {secret}") == old
    rule(7)
    with pytest.raises(Exception, match="older than the 7 days"):
        authenticate(f"Bearer {secret}")
    assert authenticate(f"Bearer {young_secret}")
    found = {each.key.name: each for each in keys.standings_of(alice)}
    assert (found["old"].state, found["old"].is_cut) == (State.EXPIRED, True)
    assert (found["young"].state, found["young"].is_cut) == (State.LIVE, True)
    page = owner.get(PAGE).content.decode()
    assert "(the site’s rule)" in page
    assert "On this site a key counts for 7 days at most." in page
    rule(None)
    assert authenticate(f"Bearer {secret}") == old


# -- the list, a new name, the end


def test_list_shows_each_keys_state_and_those_that_count_first(owner: Client, alice: User) -> None:
    for name in ("live", "expired", "revoked"):
        keys.create(alice, name, scopes=["models"], days=7)
    ApiKey.objects.filter(name="expired").update(expires_at=timezone.now())
    keys.revoke(alice, ApiKey.objects.get(name="revoked").pk)
    states = [(each.key.name, each.state) for each in keys.standings_of(alice)]
    assert states == [("live", State.LIVE), ("revoked", State.REVOKED), ("expired", State.EXPIRED)]
    page = owner.get(PAGE).content.decode()
    for key in ApiKey.objects.all():
        assert f"{key.shown}…" in page
        assert (f"{PAGE}{key.pk}/revoke/" in page) == (key.name == "live")
    for number in range(keys.ENDED_SHOWN):
        keys.revoke(alice, keys.create(alice, str(number), scopes=["chat"])[0].pk)
    assert len(keys.standings_of(alice)) == 1 + keys.ENDED_SHOWN


def test_a_key_is_named_anew_and_revoked_for_ever(owner: Client, alice: User) -> None:
    key, secret = keys.create(alice, "old <b>name</b>", scopes=["chat"])
    rename, revoke = f"{PAGE}{key.pk}/rename/", f"{PAGE}{key.pk}/revoke/"
    assert "old &lt;b&gt;name&lt;/b&gt;" in owner.get(rename).content.decode()
    assert owner.post(rename, {"name": " new \n name "})["Location"] == PAGE
    key.refresh_from_db()
    assert key.name == "new name"
    for wrong in ("", "x" * 81):
        assert owner.post(rename, {"name": wrong}).status_code == 400
    asked = owner.get(revoke).content.decode()
    assert "Revoke new name?" in asked
    assert key.shown in asked
    assert authenticate(f"Bearer {secret}")
    assert owner.post(revoke)["Location"] == PAGE
    with pytest.raises(Exception, match="revoked"):
        authenticate(f"Bearer {secret}")
    revoked_at = ApiKey.objects.get().revoked_at
    owner.post(revoke)
    assert ApiKey.objects.get().revoked_at == revoked_at


def test_keys_are_their_owners_alone(owner: Client, bob: User, alice: User) -> None:
    key, _ = keys.create(alice, "secret name", scopes=["chat"])
    stranger = signed_in(bob)
    for name in ("rename", "revoke"):
        assert stranger.get(f"{PAGE}{key.pk}/{name}/").status_code == 404
        assert stranger.post(f"{PAGE}{key.pk}/{name}/", {"name": "x"}).status_code == 404
        assert owner.put(f"{PAGE}{key.pk}/{name}/").status_code == 405
        assert Client().get(f"{PAGE}{key.pk}/{name}/").status_code == 302
        assert owner.get(f"{PAGE}{uuid.uuid4()}/{name}/").status_code == 404
    assert "secret name" not in stranger.get(PAGE).content.decode()
    assert Client().get(PAGE)["Location"].startswith("/accounts/login/")
    assert Client().post(PAGE, typed())["Location"].startswith("/accounts/login/")
    key.refresh_from_db()
    assert (key.name, key.revoked_at) == ("secret name", None)


def test_password_change_leaves_keys_and_switching_off_stops_them(owner: Client, alice: User) -> None:
    _, secret = keys.create(alice, "script", scopes=["chat"])
    change = {"oldpassword": PASSWORD, "password1": "another horse 8", "password2": "another horse 8"}
    assert owner.post("/accounts/password/change/", change).status_code == 302
    assert authenticate(f"Bearer {secret}").user == alice
    User.objects.filter(pk=alice.pk).update(is_active=False)
    with pytest.raises(Exception, match="not known"):
        authenticate(f"Bearer {secret}")


def test_admin_shows_scopes_and_filters_by_them(alice: User, sam: User) -> None:
    for scopes in (["chat"], ["models"], ["chat", "models"]):
        keys.create(alice, "+".join(scopes) + "!", scopes=scopes)
    admin = signed_in(sam)
    listed = admin.get("/admin/accounts/apikey/").content.decode()
    assert "chat models" in listed
    for scope, names in (("chat", {"chat!", "chat+models!"}), ("models", {"models!", "chat+models!"})):
        found = admin.get("/admin/accounts/apikey/", {"scope": scope}).content.decode()
        assert set(re.findall(r"[\w+]+!(?=<)", found)) == names


def test_use_of_a_key_is_noted_at_most_once_a_minute(alice: User) -> None:
    _, secret = keys.create(alice, "script", scopes=["chat"])
    authenticate(f"Bearer {secret}")
    first = ApiKey.objects.get().last_used_at
    assert first is not None
    authenticate(f"Bearer {secret}")
    assert ApiKey.objects.get().last_used_at == first
    long_ago = timezone.now() - datetime.timedelta(minutes=2)
    ApiKey.objects.update(last_used_at=long_ago)
    authenticate(f"Bearer {secret}")
    assert ApiKey.objects.get().last_used_at > long_ago
