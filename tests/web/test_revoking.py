"""Revoked is closed: streams of a session, a person or a key end when these do, told and not asked after; those of
nobody else.

A stream asks by itself only once an hour here. So whatever closes did so because it was told.
"""

from __future__ import annotations

import asyncio
import datetime
import getpass
import io
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
import redis as redis_py
from asgiref.testing import ApplicationCommunicator
from channels.db import database_sync_to_async
from django.contrib.auth.models import Group
from django.contrib.sessions.models import Session
from django.core.management import call_command
from django.db import DatabaseError, connection
from django.test import Client
from django.utils import timezone

from chatsite.accounts.models import ApiKey, User
from chatsite.api import consumers as api_consumers
from chatsite.asgi import application
from chatsite.chat import notify
from chatsite.chat.actions import send as actions_send
from chatsite.chat.models import Generation
from chatsite.chat.queries import access
from chatsite.chat.streams import revocation, sse, websocket
from chatsite.chat.streams.hub import Hub
from chatsite.privacy import erasure
from chatsite.rules.models import SiteRules
from tests.web.api_client import body
from tests.web.api_worker import kit
from tests.web.chat_worker import StepWorker
from tests.web.enrolling import PASSWORD, ask_of, ask_of_group, enrol
from tests.web.sse_client import SECONDS, Shown, Stream
from tests.web.test_live import Window
from tests.web.test_sessions import row_of, signed_in
from tests.web.test_ws import Socket

NEW = "another battery 9"
NEVER = 3_600.0

in_thread = database_sync_to_async
Deed = Callable[[User, Client, Client], object]  # done to ann, from here or to what is open there

deeds: dict[str, Deed] = {}


@pytest.fixture(autouse=True)
def asks_never(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (sse, websocket, api_consumers):
        monkeypatch.setattr(module, "RECHECK_SECONDS", NEVER)


@pytest.fixture
def ann(transactional_db: None, quick_passwords: None, site: Any, redis: redis_py.Redis) -> User:
    return User.objects.create_user("ann", email="ann@example.org", password=PASSWORD)


def deed(do: Deed) -> Deed:
    deeds[do.__name__.replace("_", " ")] = do
    return do


def admin() -> Client:
    client = Client()
    client.force_login(User.objects.get(username="root"))
    return client


def act(action: str, user: User) -> None:
    admin().post("/admin/accounts/user/", {"action": action, "_selected_action": [str(user.pk)]})


@deed
def signing_out_there(ann: User, here: Client, there: Client) -> object:
    return there.post("/accounts/logout/")


@deed
def ending_it_in_the_list_of_sessions(ann: User, here: Client, there: Client) -> object:
    return here.post(f"/accounts/sessions/{row_of(there).pk}/end/")


@deed
def ending_all_others(ann: User, here: Client, there: Client) -> object:
    return here.post("/accounts/sessions/")


@deed
def a_new_password(ann: User, here: Client, there: Client) -> object:
    return here.post("/accounts/password/change/", {"oldpassword": PASSWORD, "password1": NEW, "password2": NEW})


@deed
def a_password_that_an_admin_gives(ann: User, here: Client, there: Client) -> object:
    form = {"usable_password": "true", "password1": NEW, "password2": NEW}
    return admin().post(f"/admin/accounts/user/{ann.pk}/password/", form)


@deed
def a_password_that_the_command_gives(ann: User, here: Client, there: Client) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(getpass, "getpass", lambda prompt="": NEW)
        return call_command("changepassword", "ann", stdout=io.StringIO(), stderr=io.StringIO())


@deed
def signing_out_everywhere_by_an_admin(ann: User, here: Client, there: Client) -> object:
    return act("sign_out_everywhere", ann)


@deed
def deactivating(ann: User, here: Client, there: Client) -> object:
    return act("deactivate", ann)


@deed
def erasing_the_account(ann: User, here: Client, there: Client) -> object:
    return erasure.erase(ann, None)


@deed
def a_second_factor_that_the_site_begins_to_ask_for(ann: User, here: Client, there: Client) -> object:
    enrol(User.objects.get(username="bob"))  # who therefore may stay
    return ask_of("everybody")


@deed
def a_second_factor_that_a_group_asks_of_who_joins_it(ann: User, here: Client, there: Client) -> object:
    return ask_of_group(ann)


@deed
def a_second_factor_that_is_taken_away(ann: User, here: Client, there: Client) -> object:
    ask_of_group()
    enrol(ann)
    ann.groups.add(Group.objects.get(name="careful"))
    return act("remove_second_factor", ann)


def of_browser(client: Client, generation_id: object, cursor: str = "") -> Stream:
    """The stream as that browser asks for it, with the cookie it has."""
    stream = Stream(None, generation_id, header=cursor, app=application)
    del stream.communicator.scope["user"]
    cookie = client.cookies.get("sessionid")
    pair = f"sessionid={cookie.value}" if cookie else "none=1"
    stream.communicator.scope["headers"] += [(b"cookie", pair.encode()), (b"host", b"localhost")]
    return stream


async def goes_on(window: Window, user: User) -> None:
    """It still hears what happens to that person's list."""
    seen = len([event for event in window.events if event.event == "row"])
    await in_thread(notify.tell_windows)(user.pk, user.pk, "named")
    await window.until("row", seen + 1)


@pytest.mark.parametrize("name", deeds)
async def test_what_ends_a_session_closes_its_streams_and_nobody_elses(
    name: str, hub: Hub, ann: User, bob: User, worker: StepWorker
) -> None:
    await in_thread(User.objects.create_superuser)("root")
    here, there, of_bob = [await in_thread(signed_in)(user) for user in (ann, ann, bob)]
    conversation = await in_thread(actions_send.start_conversation)(ann)
    sent = await in_thread(actions_send.send_message)(ann, conversation, "Why?")
    attempt = worker.claim().start()
    attempt.write("half an answer")
    answer, socket = Stream(ann, sent.generation.pk), Socket(ann, conversation.pk)
    for client in (answer, socket):
        client.communicator.scope["session"] = there.session
    async with answer, socket, Window(ann, session=there.session) as window, Window(bob, session=of_bob.session) as his:
        assert (answer.status, window.status, his.status) == (200, 200, 200)
        await answer.until_text("half an answer")
        await socket.until("delta")
        await in_thread(deeds[name])(ann, here, there)
        await answer.to_end()
        await window.to_end()
        assert await socket.until_closed() == websocket.UNAUTHENTICATED
        assert not any(event.event in ("done", "again") for event in (*answer.events, *window.events))
        await goes_on(his, bob)
    async with of_browser(there, sent.generation.pk) as again:
        assert again.status == 401, "the page shows that it is signed out"


async def test_after_a_new_password_the_browser_that_made_it_reads_on_where_it_was(
    hub: Hub, ann: User, worker: StepWorker
) -> None:
    here = await in_thread(signed_in)(ann)
    conversation = await in_thread(actions_send.start_conversation)(ann)
    sent = await in_thread(actions_send.send_message)(ann, conversation, "Why?")
    attempt = worker.claim().start()
    attempt.write("before ")
    stream = Stream(ann, sent.generation.pk)
    stream.communicator.scope["session"] = here.session
    async with stream:
        await stream.until_text("before ")
        await in_thread(deeds["a new password"])(ann, here, here)
        await stream.to_end()  # its session has another key now
    attempt.write("after")
    cursor = [event.id for event in stream.events if event.id][-1]
    async with of_browser(here, sent.generation.pk, cursor) as again:
        assert again.status == 200
        await again.until_text("after")
    assert Shown().take([*stream.events, *again.events]).content == "before after"


async def test_a_second_window_of_another_session_of_the_same_person_goes_on(hub: Hub, ann: User) -> None:
    here, there = [await in_thread(signed_in)(ann) for _ in range(2)]
    async with Window(ann, session=there.session) as window, Window(ann, session=here.session) as kept:
        await in_thread(deeds["ending it in the list of sessions"])(ann, here, there)
        await window.to_end()
        await goes_on(kept, ann)


async def test_a_stream_asks_by_itself_when_nobody_was_told(
    hub: Hub, ann: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The word is lost, as it is where Redis is away."""
    monkeypatch.setattr(notify, "tell_streams", lambda user_id: None)
    monkeypatch.setattr(sse, "RECHECK_SECONDS", 0.05)
    here = await in_thread(signed_in)(ann)
    async with Window(ann, session=here.session) as window:
        await in_thread(here.session.flush)()
        await window.to_end()


async def test_nobody_is_sent_off_while_the_database_is_away(hub: Hub, ann: User) -> None:
    answers: list[Any] = [DatabaseError("away"), True, False]

    async def may_go_on() -> bool:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return bool(answer)

    async with asyncio.timeout(SECONDS):
        await revocation.until_revoked(ann.pk, may_go_on, every=0.01)
    assert not answers


def test_sessions_that_are_swept_away_long_after_their_end_tell_nobody(
    ann: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(notify, "tell_streams", told.append)
    here = signed_in(ann)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE django_session SET expire_date = now() - interval '1 day'")
    here.session.clear_expired()
    assert told == []


def test_looking_whether_a_session_stands_changes_nothing_of_it(ann: User, settings: Any) -> None:
    """Not even after the site's secret has changed, when Django would give it another key."""
    here = signed_in(ann)
    key = here.cookies["sessionid"].value
    assert access.is_signed_in(key, ann.pk)
    settings.SECRET_KEY_FALLBACKS, settings.SECRET_KEY = [settings.SECRET_KEY], "another secret of this site " * 2
    assert access.is_signed_in(key, ann.pk)
    settings.SECRET_KEY_FALLBACKS = []
    assert not access.is_signed_in(key, ann.pk)
    assert list(Session.objects.values_list("session_key", flat=True)) == [key]


# -- keys


class Completion:
    """A request to `/v1`, as ASGI messages."""

    def __init__(self, secret: str, *, is_stream: bool) -> None:
        request = json.dumps({**body("Why?"), "stream": is_stream, "max_tokens": 20}).encode()
        headers = [(b"authorization", f"Bearer {secret}".encode())]
        path = "/v1/chat/completions"
        scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "scheme": "http"}
        self.communicator = ApplicationCommunicator(application, scope)
        self.request = {"type": "http.request", "body": request, "more_body": False}
        self.status = 0
        self.body = ""

    async def send(self) -> None:
        await self.communicator.send_input(self.request)

    async def begin(self) -> None:
        """Until the headers and the first words are there."""
        while not self.body:
            await self._take()

    async def to_end(self) -> None:
        while await self._take():
            pass

    async def _take(self) -> bool:
        """Whether more will come."""
        message = await self.communicator.receive_output(SECONDS)
        self.status = message.get("status", self.status)
        self.body += message.get("body", b"").decode()
        return message["type"] != "http.response.body" or bool(message.get("more_body"))

    async def leave(self) -> None:
        await self.communicator.send_input({"type": "http.disconnect"})
        await self.communicator.wait(SECONDS)


async def admitted() -> Generation:
    """The one completion that was asked for."""

    def find() -> Generation | None:
        return Generation.objects.filter(source="api").first()

    async with asyncio.timeout(SECONDS):
        while (found := await in_thread(find)()) is None:
            await asyncio.sleep(0.01)
    return found


@pytest_asyncio.fixture
async def key(hub: Hub, ann: User, worker: StepWorker) -> AsyncIterator[tuple[ApiKey, str]]:
    worker.announce(kit=kit().to_bytes())
    yield await in_thread(ApiKey.create)(ann)


def revoke(key: ApiKey) -> None:
    key.revoked_at = timezone.now()
    key.save(update_fields=["revoked_at"])


def shorten_all(key: ApiKey) -> None:
    ApiKey.objects.update(created_at=timezone.now() - datetime.timedelta(days=9))
    SiteRules(id=1, key_days=7).save()


@pytest.mark.parametrize(
    ("end", "is_stream"),
    [
        pytest.param(revoke, True, id="revoked"),
        pytest.param(revoke, False, id="revoked, in one piece"),
        pytest.param(ApiKey.delete, True, id="deleted"),
        pytest.param(shorten_all, False, id="by rule"),
        pytest.param(lambda key: act("deactivate", key.user), True, id="owner deactivated"),
    ],
)
async def test_an_answer_to_a_program_ends_with_its_key(
    key: tuple[ApiKey, str], end: Callable[[ApiKey], object], is_stream: bool
) -> None:
    await in_thread(User.objects.create_superuser)("root")
    asked = Completion(key[1], is_stream=is_stream)
    await asked.send()
    generation = await admitted()
    if is_stream:
        await asked.begin()
    await in_thread(end)(key[0])
    await asked.to_end()
    assert asked.status == (200 if is_stream else 401)
    assert '"error"' in asked.body
    assert "[DONE]" not in asked.body
    await asked.leave()
    await in_thread(generation.refresh_from_db)()
    assert generation.stop_requested, "nobody reads on"


async def test_a_key_that_expires_meanwhile_ends_its_answer_then(key: tuple[ApiKey, str]) -> None:
    soon = timezone.now() + datetime.timedelta(seconds=2)
    await in_thread(ApiKey.objects.update)(expires_at=soon)
    asked = Completion(key[1], is_stream=False)
    await asked.send()
    await asked.to_end()
    assert asked.status == 401
    assert timezone.now() >= soon
    await asked.leave()


async def test_another_key_of_the_same_person_goes_on(key: tuple[ApiKey, str], worker: StepWorker) -> None:
    _, secret = await in_thread(ApiKey.create)(key[0].user)
    asked = Completion(secret, is_stream=False)
    await asked.send()
    await admitted()
    await in_thread(revoke)(key[0])
    attempt = worker.claim().start()
    attempt.write("Because.")
    attempt.finish()
    await asked.to_end()
    assert asked.status == 200
    assert "Because." in asked.body
    await asked.leave()
