"""One's sessions: which there are, from where each was last used, and that an ended one opens nothing any more."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from allauth.usersessions.models import UserSession
from channels.db import database_sync_to_async
from django.contrib.sessions.models import Session
from django.test import Client
from django.utils import timezone

from chatsite.accounts import sessions
from chatsite.accounts.browsers import described
from chatsite.accounts.models import User
from chatsite.accounts.templatetags.browsers import browser
from chatsite.chat.models import Conversation
from chatsite.chat.streams import sse, websocket
from tests.web.test_live import Window
from tests.web.test_ws import Socket

PASSWORD = "correct horse 7"
LIST = "/accounts/sessions/"
FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:143.0) Gecko/20100101 Firefox/143.0"
SAFARI = (
    "Mozilla/5.0 (iPhone; CPU iPhone OS 18_6 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/18.6 "
    "Mobile/15E148 Safari/604.1"
)

in_thread = database_sync_to_async
pytestmark = pytest.mark.usefixtures("site", "redis")


@pytest.fixture
def ann(db: None, settings: Any) -> User:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # the real one takes its time
    return User.objects.create_user("ann", password=PASSWORD)


@pytest.fixture
def heard() -> Any:
    """What `sessions_ended` told: whose, and how many."""
    told: list[tuple[str, int]] = []

    def hear(user: User, number: int, **_: Any) -> None:
        told.append((user.username, number))

    sessions.sessions_ended.connect(hear)
    yield told
    sessions.sessions_ended.disconnect(hear)


def signed_in(user: User, agent: str = FIREFOX, address: str = "198.51.100.7") -> Client:
    client = Client(HTTP_USER_AGENT=agent, REMOTE_ADDR=address)
    client.force_login(user)
    client.get(LIST)
    return client


def row_of(client: Client) -> UserSession:
    return UserSession.objects.get(session_key=client.cookies["sessionid"].value)


def is_signed_in(client: Client) -> bool:
    return client.get(LIST).status_code == 200


# -- the list


def test_list_names_browser_and_address_and_marks_this_one(ann: User, bob: User) -> None:
    here, phone = signed_in(ann), signed_in(ann, SAFARI, "2001:db8::7")
    signed_in(bob, "curl/8.5.0", "203.0.113.9")
    shown = here.get(LIST).content.decode()
    items = shown.split("<li")
    this = next(item for item in items if "this one" in item)
    other = next(item for item in items if "Safari on iPhone" in item)
    assert "Firefox on Linux" in this
    assert "198.51.100.7" in this
    assert "2001:db8::7" in other
    assert f"/accounts/sessions/{row_of(phone).pk}/end/" in other
    assert "/end/" not in this
    assert "203.0.113.9" not in shown


def test_names_that_browsers_give_themselves_are_escaped(ann: User) -> None:
    assert b"<b>x" not in signed_in(ann, "<b>x</b>").get(LIST).content


def test_signing_in_puts_it_on_the_list(ann: User) -> None:
    client = Client(HTTP_USER_AGENT=SAFARI)
    client.post("/accounts/login/", {"login": "ann", "password": PASSWORD})
    assert row_of(client).user == ann


def test_last_seen_is_written_once_a_minute(ann: User) -> None:
    client = signed_in(ann)
    first = row_of(client).last_seen_at
    client.get("/links/", REMOTE_ADDR="203.0.113.1")
    assert row_of(client).last_seen_at == first
    long_ago = timezone.now() - datetime.timedelta(minutes=2)
    UserSession.objects.update(last_seen_at=long_ago)
    client.get("/links/", REMOTE_ADDR="203.0.113.1", HTTP_USER_AGENT=SAFARI)
    row = row_of(client)
    assert row.last_seen_at > long_ago
    assert (row.ip, row.user_agent) == ("203.0.113.1", SAFARI)


def test_a_session_that_nobody_saw_begin_is_listed_when_it_is_used(ann: User) -> None:
    client = signed_in(ann)
    UserSession.objects.all().delete()
    client.get("/links/")
    assert row_of(client).user == ann


def test_who_is_not_signed_in_has_no_list(client: Client, db: None) -> None:
    assert client.get(LIST)["Location"] == f"/accounts/login/?next={LIST}"
    assert client.post("/accounts/sessions/1/end/")["Location"].startswith("/accounts/login/")
    assert not UserSession.objects.exists()


@pytest.mark.parametrize(
    ("user_agent", "named"),
    [
        (FIREFOX, "Firefox on Linux"),
        (SAFARI, "Safari on iPhone"),
        ("Mozilla/5.0 (Windows NT 10.0) AppleWebKit/537.36 Chrome/141.0 Safari/537.36 Edg/141.0", "Edge on Windows"),
        ("Mozilla/5.0 (Linux; Android 14) AppleWebKit/537.36 Chrome/141.0 Mobile Safari/537.36", "Chrome on Android"),
        ("Mozilla/5.0 (Macintosh; Intel Mac OS X 15_6) AppleWebKit/605.1 Safari/605.1", "Safari on macOS"),
        ("Mozilla/5.0 (iPad; CPU OS 18_6 like Mac OS X) FxiOS/143.0 Safari/605.1", "Firefox on iPad"),
        ("Mozilla/5.0 (compatible; Windows NT 10.0)", "Windows"),
        ("curl/8.5.0", "curl/8.5.0"),
        ("x" * 200, "x" * 60),
        ("", "unknown"),
    ],
)
def test_browser_is_named_in_words(user_agent: str, named: str) -> None:
    assert browser(user_agent) == named
    assert all(part == "" or part in named for part in described(user_agent))


# -- ending them


def test_an_ended_session_is_signed_out_at_once_and_the_others_stay(ann: User, heard: list[tuple[str, int]]) -> None:
    here, there, third = signed_in(ann), signed_in(ann, SAFARI), signed_in(ann)
    ended = here.post(f"/accounts/sessions/{row_of(there).pk}/end/", follow=True)
    assert b"That session has ended" in ended.content
    assert [is_signed_in(client) for client in (here, there, third)] == [True, False, True]
    assert there.get("/links/")["Location"].startswith("/accounts/login/")
    fragment = there.get("/chat/sidebar/", headers={"HX-Request": "true"})
    assert fragment["HX-Redirect"].startswith("/accounts/login/")
    assert heard == [("ann", 1)]


def test_all_others_end_with_one_button(ann: User, bob: User, heard: list[tuple[str, int]]) -> None:
    here, there, third, of_bob = signed_in(ann), signed_in(ann), signed_in(ann), signed_in(bob)
    ended = here.post(LIST, follow=True)
    assert b"All other sessions have ended" in ended.content
    assert b"End all others" not in ended.content
    assert [is_signed_in(client) for client in (here, there, third, of_bob)] == [True, False, False, True]
    assert heard == [("ann", 2)]


def test_the_session_that_asks_is_ended_by_signing_out(ann: User, heard: list[tuple[str, int]]) -> None:
    here = signed_in(ann)
    assert here.post(f"/accounts/sessions/{row_of(here).pk}/end/")["Location"] == "/accounts/logout/"
    assert is_signed_in(here)
    here.post("/accounts/logout/")
    assert not is_signed_in(here)
    assert heard == []


def test_nobody_ends_sessions_of_others(ann: User, bob: User) -> None:
    here, of_bob = signed_in(ann), signed_in(bob)
    path = f"/accounts/sessions/{row_of(of_bob).pk}/end/"
    assert here.post(path).status_code == 404
    assert here.post("/accounts/sessions/999999/end/").status_code == 404
    assert of_bob.get(path).status_code == 405
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(bob)
    assert strict.post(path).status_code == 403
    assert is_signed_in(of_bob)


def test_a_new_password_ends_all_other_sessions(ann: User) -> None:
    here, there = signed_in(ann), signed_in(ann, SAFARI)
    typed = {"oldpassword": PASSWORD, "password1": "another horse 8", "password2": "another horse 8"}
    assert here.post("/accounts/password/change/", typed).status_code == 302
    assert is_signed_in(here)
    assert not is_signed_in(there)
    assert b"Safari on iPhone" not in here.get(LIST).content


def test_a_wrong_old_password_changes_nothing(ann: User) -> None:
    here, there = signed_in(ann), signed_in(ann)
    typed = {"oldpassword": "wrong", "password1": "another horse 8", "password2": "another horse 8"}
    assert b"type your current password" in here.post("/accounts/password/change/", typed).content
    assert is_signed_in(there)


def test_an_admin_signs_people_out_everywhere(ann: User, bob: User, sam: User, heard: list[tuple[str, int]]) -> None:
    one, two, of_bob, admin = signed_in(ann), signed_in(ann), signed_in(bob), signed_in(sam)
    unlisted = Client()
    unlisted.force_login(ann)  # not used since lists are kept
    chosen = {"action": "sign_out_everywhere", "_selected_action": [str(ann.pk)]}
    done = admin.post("/admin/accounts/user/", chosen, follow=True)
    assert b"3 session(s) of 1 people ended" in done.content
    assert [is_signed_in(client) for client in (one, two, unlisted, of_bob, admin)] == [False] * 3 + [True] * 2
    assert Session.objects.count() == 2
    assert heard == [("ann", 2), ("ann", 1)]


# -- streams that are open meanwhile


@pytest.mark.usefixtures("hub")
async def test_open_streams_and_sockets_end_with_their_session(
    alice: User, conversation: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (sse, websocket):
        monkeypatch.setattr(module, "RECHECK_SECONDS", 0.05)
    monkeypatch.setattr(sse, "PING_SECONDS", 0.05)
    monkeypatch.setattr(websocket, "LOOK_SECONDS", 0.05)
    here, there = await in_thread(signed_in)(alice), await in_thread(signed_in)(alice, SAFARI)
    socket = Socket(alice, conversation.pk)
    socket.communicator.scope["session"] = there.session
    async with Window(alice, session=there.session) as window, Window(alice, session=here.session) as kept, socket:
        assert (window.status, kept.status) == (200, 200)
        await in_thread(here.post)(f"/accounts/sessions/{(await in_thread(row_of)(there)).pk}/end/")
        await window.to_end()
        assert await socket.until_closed() == 4401
        assert "again" not in window.body
        seen = len(kept.body)
        while len(kept.body) == seen:  # it goes on
            await kept.next_part()
