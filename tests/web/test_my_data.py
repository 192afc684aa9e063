"""One's own data: counted, taken away whole, brought in again, and deleted by nobody but its owner, who means it."""

from __future__ import annotations

import io
import json
import re
import time
import zipfile
from collections.abc import Callable
from typing import Any

import pytest
import redis as redis_py
from allauth.account.internal.flows.login import record_authentication
from channels.db import database_sync_to_async
from django.test import AsyncClient, Client, RequestFactory

from chatsite.accounts.models import User
from chatsite.audit.models import AuditEntry
from chatsite.chat.models import Conversation, Message
from chatsite.privacy import archive, holdings
from chatsite.rules.models import SiteRules
from chatsite.transfer import importing, reading
from tests.web import traces
from tests.web.chat_worker import StepWorker
from tests.web.test_pages import signed_in
from tests.web.traces import EMAIL, MARK, NAME, PASSWORD, Traces

in_thread = database_sync_to_async
DELETE = "/account/delete/"
BY_OTHER_SITE = "socialaccount"


@pytest.fixture
def quick_hashes(settings: Any) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture
def left(
    bob: User, sam: User, site: Callable[..., None], worker: StepWorker, redis: redis_py.Redis, quick_hashes: None
) -> Traces:
    return traces.leave(bob, sam, worker, redis)


@pytest.fixture
def zeb(transactional_db: None, quick_hashes: None, redis: redis_py.Redis) -> User:
    return User.objects.create_user(NAME, email=EMAIL, password=PASSWORD)


async def downloaded(user: User) -> zipfile.ZipFile:
    client = AsyncClient()
    await in_thread(client.force_login)(user)
    response: Any = await client.post("/account/data/download/")
    assert response.status_code == 200
    assert response["Content-Type"] == "application/zip"
    assert f'filename="{user.get_username()} ' in response["Content-Disposition"]
    return zipfile.ZipFile(io.BytesIO(b"".join([piece async for piece in response])))


# -- the page


def test_page_counts_what_is_there_and_says_how_long_it_stays(left: Traces) -> None:
    counts = {str(row.kind): row.number for row in holdings.of(left.user)}
    assert min(counts.values()) > 0, counts
    assert counts["Conversations"] == Conversation.objects.filter(owner=left.user).count()
    SiteRules.objects.create(id=1, retention_days=30, audit_days=90)
    page = left.browser.get("/account/data/").content.decode()
    assert f"<dd>{counts['Messages']}</dd>" in page
    assert "Your chats are deleted 30 days after their last message." in page
    assert "Records of accounts are deleted after 90 days." in page
    SiteRules.objects.update(retention_days=None, audit_days=None)
    page = left.browser.get("/account/data/").content.decode()
    assert "Your chats stay until you delete them." in page
    assert "Records of accounts" not in page


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("get", "/account/data/", 302),
        ("post", "/account/data/download/", 302),
        ("get", DELETE, 302),
        ("post", DELETE, 302),
        ("get", "/account/deleted/", 200),
    ],
)
def test_pages_for_somebody_who_is_not_signed_in(transactional_db: None, method: str, path: str, status: int) -> None:
    response = getattr(Client(), method)(path)
    assert response.status_code == status
    if status == 302:
        assert response["Location"].startswith("/accounts/login/")


def test_link_to_the_download_downloads_nothing(alice: User) -> None:
    assert signed_in(alice).get("/account/data/download/").status_code == 405
    forged = Client(enforce_csrf_checks=True)
    forged.force_login(alice)
    assert forged.post("/account/data/download/").status_code == 403
    assert not AuditEntry.objects.filter(action="data.exported").exists()


# -- the download


async def test_download_has_everything_but_secrets_and_says_what_each_file_is(left: Traces) -> None:
    user = left.user
    zipped = await downloaded(user)
    names = zipped.namelist()
    texts = {name: zipped.read(name).decode() for name in names}
    readme = texts.pop("README.txt")
    files = {name: name.removeprefix("account/").removesuffix(".json") for name in texts if name.startswith("account/")}
    found = {key: json.loads(texts[name]) for name, key in files.items()}
    assert set(found) == {part.name for part in archive.PARTS}
    for part in archive.PARTS:
        assert found[part.name], part.name
        assert part.path in readme
        assert str(part.about) in readme
    assert found["profile"]["email_addresses"] == [{"email": EMAIL, "verified": True, "primary": True}]
    assert found["profile"]["outside_accounts"][0]["uid"] == "77"
    assert found["profile"]["second_factors"][0]["type"] == "totp"
    assert f"/s/{left.link.token}/" in found["links"][0]["address"]
    assert found["links"][0]["address"].startswith("http")
    assert MARK in str(found["links"][0]["snapshot"])
    assert {row["media_type"] for row in found["drafts"]["files"]} == {"text/plain"}
    assert found["drafts"]["queued_messages"][0]["content"] == f"{MARK} queued"
    assert found["feedback"][0]["outcome"]["note"] == f"{MARK} seen"
    assert found["opened"][0]["actor_name"] == "sam"
    assert len([name for name in names if name.startswith("json/")]) == await in_thread(_num_conversations)(user)
    whole = "".join(texts.values())
    for part_of_talk in ("another answer", "third answer", "asked differently", "in a file", "instructions"):
        assert f"{MARK} {part_of_talk}" in whole
    secrets = await in_thread(_secrets)(left)
    assert [name for name, secret in secrets.items() if secret in whole + readme] == []
    assert "10.0.0.3" not in whole  # where staff were, is none of their business
    exported = await in_thread(AuditEntry.objects.get)(action="data.exported")
    assert exported.actor_id == user.pk


def _num_conversations(user: User) -> int:
    return Conversation.objects.filter(owner=user).count()


def _secrets(left: Traces) -> dict[str, str]:
    key = left.user.api_keys.get()
    return {
        "key": left.secret,
        "hash of a key": key.sha256,
        "password": left.user.password,
        "second factor": "not to be told",
        "outside token": "outside secret",
        "session": left.browser.session.session_key or "",
        "another session": left.unlisted.session.session_key or "",
    }


async def test_download_comes_back_by_import_with_every_branch(left: Traces, bob: User) -> None:
    zipped = await downloaded(left.user)
    data = zipped.fp.getvalue()  # type: ignore[union-attr]
    summary = await in_thread(importing.import_file)(bob, io.BytesIO(data), len(data))
    assert summary.num_new == await in_thread(_num_conversations)(left.user)
    assert not summary.notes
    both = await in_thread(_branches)(left.user), await in_thread(_branches)(bob)
    assert both[0] == both[1]
    assert len(both[0]) == 5


def _branches(user: User) -> list[tuple[str, str]]:
    """The conversation with branches: each message behind which."""
    talk = Conversation.objects.get(owner=user, messages__content=f"{MARK} third answer")
    rows = Message.objects.filter(conversation=talk).select_related("parent").order_by("pk")
    assert len(reading.record_of(talk).messages) == len(rows)
    return [(row.content, row.parent.content if row.parent else "") for row in rows]


def test_every_model_that_names_a_person_is_in_the_download_or_said_to_be_left_out() -> None:
    told = {label for part in archive.PARTS for label in part.models} | set(archive.LEFT_OUT)
    naming = {model._meta.label for model, _name in traces.references() if not model._meta.auto_created}
    assert naming - told == set()
    assert told - naming == set(), "no such model any more"


# -- the end of the account


def confirm(client: Client) -> None:
    assert client.post("/accounts/reauthenticate/", {"password": PASSWORD}).status_code == 302


def test_owner_shows_who_they_are_types_the_name_and_is_gone(zeb: User, redis: redis_py.Redis) -> None:
    client = signed_in(zeb)
    asked = client.get(DELETE)
    assert asked["Location"] == "/accounts/reauthenticate/?next=%2Faccount%2Fdelete%2F"
    confirm(client)
    page = client.get(DELETE)
    assert page.status_code == 200
    for name, words in ((NAME.upper(), "is not the name of this account"), ("", "This field is required")):
        refused = client.post(DELETE, {"name": name})
        assert refused.status_code == 400
        assert words in refused.content.decode()
    assert User.objects.filter(pk=zeb.pk).exists()
    done = client.post(DELETE, {"name": NAME})
    assert (done.status_code, done["Location"]) == (302, "/account/deleted/")
    assert done["Clear-Site-Data"] == '"cookies", "storage"'
    assert not User.objects.exists()
    assert "The account is deleted" in client.get("/account/deleted/").content.decode()
    assert client.get("/")["Location"].startswith("/accounts/login/")
    assert re.fullmatch("deleted user [0-9a-f]{8}", AuditEntry.objects.get(action="account.deleted").actor_name)


def test_what_was_typed_is_not_lost_when_the_password_is_asked_for_in_between(zeb: User) -> None:
    client = signed_in(zeb)
    assert client.post(DELETE, {"name": NAME})["Location"].startswith("/accounts/reauthenticate/")
    assert User.objects.filter(pk=zeb.pk).exists()
    done = client.post("/accounts/reauthenticate/", {"password": PASSWORD, "next": DELETE})
    assert (done.status_code, done["Location"]) == (302, "/account/deleted/")
    assert not User.objects.exists()
    assert client.get("/")["Location"].startswith("/accounts/login/")


def _signed_in_elsewhere(user: User, seconds_ago: float, monkeypatch: pytest.MonkeyPatch) -> Client:
    client = signed_in(user)
    request = RequestFactory().get("/")
    request.user, request.session = user, client.session
    with monkeypatch.context() as then:
        now = time.time()
        then.setattr(time, "time", lambda: now - seconds_ago)
        record_authentication(request, user, method=BY_OTHER_SITE)
    request.session.save()
    return client


def test_somebody_without_a_password_signs_in_once_more_and_deletes(
    alice: User, redis: redis_py.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not alice.has_usable_password()
    client = _signed_in_elsewhere(alice, 3_600, monkeypatch)
    assert "sign in once more" in client.get(DELETE).content.decode()
    assert client.post(DELETE, {"name": "alice"}).status_code == 403
    assert User.objects.filter(pk=alice.pk).exists()
    sent = client.post(DELETE, {"again": "1"})
    assert sent["Location"] == "/accounts/login/?next=/account/delete/"
    assert client.get(DELETE)["Location"].startswith("/accounts/login/")  # signed out
    client = _signed_in_elsewhere(alice, 10, monkeypatch)
    assert "Type “alice” to confirm" in client.get(DELETE).content.decode()
    assert client.post(DELETE, {"name": "alice"}).status_code == 302
    assert not User.objects.exists()


def test_last_administrator_is_told_that_they_cannot_go(
    sam: User, redis: redis_py.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = _signed_in_elsewhere(sam, 10, monkeypatch)
    page = client.get(DELETE)
    assert "“sam” is the last administrator" in page.content.decode()
    assert 'name="name"' not in page.content.decode()
    refused = client.post(DELETE, {"name": "sam"})
    assert refused.status_code == 409
    assert "Make another person one first." in refused.content.decode()
    assert User.objects.filter(pk=sam.pk).exists()
    assert client.get("/").status_code == 200  # still signed in
