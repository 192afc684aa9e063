"""Hints of what changed in somebody's list: pushed to all their windows, to nobody else; a lost one is made good."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import redis as redis_py
from asgiref.testing import ApplicationCommunicator
from channels.db import database_sync_to_async
from django.contrib.auth.models import AnonymousUser
from django.db import connection
from django.test import Client

from chatsite.accounts.models import User
from chatsite.chat import inference, notify
from chatsite.chat.actions import organize, send
from chatsite.chat.generation import record
from chatsite.chat.models import Conversation
from chatsite.chat.streams import limits, sse
from chatsite.chat.streams.hub import Hub
from inference.client import InferenceClient
from inference.messages.generation import FinishReason
from tests.web.chat_worker import StepWorker
from tests.web.sse_client import Stream, application

in_thread = database_sync_to_async


class Window(Stream):
    """One open page's connection."""

    def __init__(self, user: Any, *, method: str = "GET", session: Any = None) -> None:
        super().__init__(user, "none")
        scope: dict[str, Any] = {
            "type": "http",
            "method": method,
            "path": "/chat/live/",
            "query_string": b"",
            "headers": [],
            "user": user or AnonymousUser(),
        }
        if session is not None:
            scope["session"] = session
        self.communicator = ApplicationCommunicator(application, scope)

    async def hints(self, count: int) -> list[tuple[str, str]]:
        """The first so many, as change and conversation."""
        await self.until("row", count)
        return [(e.data["change"], e.data["conversation"]) for e in self.events if e.event == "row"]


async def subscribed(hub: Hub, window: Window) -> None:
    """The window's first word, and the hub's that its subscription stands: nothing published from here on is lost."""
    await window.until("stale")
    async with asyncio.timeout(5):
        while not any(b":list:" in name for name in hub._acknowledged):
            await asyncio.sleep(0.01)


async def test_every_window_of_the_owner_hears_each_change_and_nobody_elses_does(
    hub: Hub, alice: User, bob: User, conversation: Conversation, worker: StepWorker
) -> None:
    pk = str(conversation.pk)
    async with Window(alice) as one, Window(alice) as two, Window(bob) as stranger:
        await subscribed(hub, one)
        sent = await in_thread(send.send_message)(alice, conversation, "Why?")
        await one.hints(1)
        attempt = worker.claim().start()
        attempt.write("secret")
        attempt.finish()
        await in_thread(record.record)(attempt.id)
        await one.hints(2)
        for number, verb in enumerate(
            (
                lambda: organize.mark(alice, conversation, is_unread=False),
                lambda: organize.rename(alice, conversation, "secret"),
                lambda: organize.pin(alice, conversation, is_on=True),
                lambda: organize.archive(alice, conversation, is_on=True),
                lambda: organize.delete(alice, conversation),
            )
        ):
            await in_thread(verb)()
            await one.hints(3 + number)
        wanted = ["began", "ended", "seen", "named", "moved", "moved", "gone"]
        assert await one.hints(7) == [(change, pk) for change in wanted]
        heard = await two.hints(6)
        assert {change for change, _ in heard} >= {"began", "ended", "named"}
        assert "secret" not in one.body + two.body
        assert not [event for event in stranger.events if event.event == "row"]
        assert sent.generation.pk == attempt.id


async def test_hints_that_are_none_are_not_passed_on(
    hub: Hub, alice: User, conversation: Conversation, redis: redis_py.Redis
) -> None:
    """A page makes addresses of what it is told."""
    async with Window(alice) as window:
        await subscribed(hub, window)
        for hint in (b"", b"\xff", b"named ../../accounts/logout", b"named", b"x" * 10_000, b"\x00 " + b"0" * 36):
            redis.publish(notify.channel_of_list(alice.pk), hint)
        await in_thread(organize.rename)(alice, conversation, "x")
        assert await window.hints(1) == [("named", str(conversation.pk))]


async def test_failed_verb_says_nothing(hub: Hub, alice: User, bob: User, conversation: Conversation) -> None:
    async with Window(alice) as window:
        await subscribed(hub, window)
        assert await in_thread(organize.delete_all)(bob, [conversation.pk]) == 0
        await in_thread(organize.rename)(alice, conversation, "x")
        assert [change for change, _ in await window.hints(1)] == ["named"]


async def test_lost_subscription_is_said_so_that_the_page_looks_itself(
    hub: Hub, alice: User, redis: redis_py.Redis, conversation: Conversation
) -> None:
    async with Window(alice) as window:
        await subscribed(hub, window)
        count = len([event for event in window.events if event.event == "stale"])
        redis.client_kill_filter(_type="pubsub")
        await window.until("stale", count + 1)


async def test_redis_being_away_fails_no_verb(
    alice: User, conversation: Conversation, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:

    away = InferenceClient(dataclasses.replace(settings.INFERENCE, redis_url="redis://127.0.0.1:1/0"))
    monkeypatch.setattr(inference, "inference_client", lambda: away)
    assert (await in_thread(organize.rename)(alice, conversation, "still")).title == "still"


@pytest.mark.parametrize(("method", "status"), [("GET", 401), ("POST", 405)])
async def test_refused(method: str, status: int, hub: Hub, alice: User) -> None:
    window = Window(alice if method == "POST" else None, method=method)
    async with window:
        assert window.status == status


async def test_windows_are_capped_with_all_other_streams(hub: Hub, alice: User, site: Callable[..., None]) -> None:
    site(max_streams_per_user=1)
    async with Window(alice) as one:
        assert one.status == 200
        async with Window(alice) as two:
            assert two.status == 429
    assert not limits._open


async def test_signing_out_ends_it_and_silence_is_filled(
    hub: Hub, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "PING_SECONDS", 0.05)
    monkeypatch.setattr(sse, "RECHECK_SECONDS", 0.05)
    browser = Client()
    await in_thread(browser.force_login)(alice)
    async with Window(alice, session=browser.session) as window:
        async with asyncio.timeout(10):
            while ": ping" not in window.body:
                await window.next_part()
        await in_thread(browser.session.flush)()
        await window.to_end()
    assert "again" not in window.body


async def test_no_window_holds_a_database_connection(hub: Hub, alice: User) -> None:
    def num_connections() -> int:
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
            return int(cursor.fetchone()[0])

    before = await in_thread(num_connections)()
    async with Window(alice) as one, Window(alice) as two, Window(alice) as three:
        await subscribed(hub, one)
        for window in (two, three):
            await window.until("stale")
        assert await in_thread(num_connections)() <= before + 1


async def test_end_without_a_log_is_told(hub: Hub, alice: User, conversation: Conversation, worker: StepWorker) -> None:
    async with Window(alice) as window:
        await subscribed(hub, window)
        await in_thread(send.send_message)(alice, conversation, "Why?")
        assert await in_thread(record.end_without_log)(
            (await in_thread(lambda: conversation.messages.get(role="assistant").generation)()).pk, FinishReason.ERROR
        )
        assert [change for change, _ in await window.hints(2)] == ["began", "ended"]
