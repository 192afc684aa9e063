"""A conversation over WebSocket: the same frames, answers that begin later, Stop; and nothing for anybody else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator
from channels.db import database_sync_to_async
from channels.routing import URLRouter
from channels.testing import WebsocketCommunicator
from django.contrib.auth.models import AnonymousUser
from django.test import Client

from chatsite.accounts.models import User
from chatsite.chat.actions import answer
from chatsite.chat.actions import send as actions_send
from chatsite.chat.generation import record
from chatsite.chat.models import Conversation
from chatsite.chat.routing import websocket_urlpatterns
from chatsite.chat.streams import limits, websocket
from chatsite.chat.streams.hub import Hub
from chatsite.chat.streams.limits import Budget
from tests.web.chat_worker import StepWorker
from tests.web.sse_client import Shown, SseEvent

SECONDS = 10.0

in_thread = database_sync_to_async
pytestmark = pytest.mark.usefixtures("hub")


class Communicator(WebsocketCommunicator):
    """As Channels' own, but database connections go back to the pool while it waits, as they do in a server."""

    send_input = ApplicationCommunicator.send_input
    receive_output = ApplicationCommunicator.receive_output


class Socket:
    """One client of a conversation."""

    def __init__(self, user: Any, conversation_id: object) -> None:
        self.communicator = Communicator(URLRouter(websocket_urlpatterns), f"/ws/chat/{conversation_id}")
        self.communicator.scope["user"] = user or AnonymousUser()
        self.frames: list[dict[str, Any]] = []

    async def __aenter__(self) -> Socket:
        is_accepted, _ = await self.communicator.connect(SECONDS)
        assert is_accepted
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.communicator.disconnect()

    async def say(self, frame: Any) -> None:
        await self.communicator.send_json_to(frame)

    async def until(self, event: str, **facts: Any) -> dict[str, Any]:
        """The next frame of that event whose data has these facts."""
        async with asyncio.timeout(SECONDS):
            while True:
                frame = await self.communicator.receive_json_from(SECONDS)
                self.frames.append(frame)
                if frame["event"] == event and facts.items() <= frame["data"].items():
                    return frame

    async def until_closed(self) -> int:
        async with asyncio.timeout(SECONDS):
            while (message := await self.communicator.receive_output(SECONDS))["type"] != "websocket.close":
                pass
            return int(message["code"])

    def shown(self, generation_id: object) -> Shown:
        own = [frame for frame in self.frames if frame.get("generation") == str(generation_id)]
        return Shown().take(SseEvent(frame["event"], frame["data"], frame.get("id", "")) for frame in own)


async def send(user: User, conversation: Conversation, text: str) -> answer.Sent:
    return await in_thread(actions_send.send_message)(user, conversation, text)


async def finish(worker: StepWorker, *pieces: str) -> None:
    attempt = worker.claim().start()
    attempt.write(*pieces)
    attempt.finish()
    await in_thread(record.record)(attempt.id)


async def test_answers_being_written_and_those_that_begin_later_are_told(
    alice: User, conversation: Conversation, worker: StepWorker
) -> None:
    first = await send(alice, conversation, "one")
    async with Socket(alice, conversation.pk) as socket:
        await socket.until("status")
        await finish(worker, "Hel", "lo")
        await socket.until("done", status="done")
        second = await send(alice, conversation, "two")
        await finish(worker, "again")
        assert (await socket.until("done"))["generation"] == str(second.generation.pk)
    assert socket.shown(first.generation.pk).content == "Hello"
    shown = socket.shown(second.generation.pk)
    assert shown.content == "again"
    assert "<p>again</p>" in "".join(shown.blocks) or (shown.done and "again" in shown.done["html"])


async def test_delta_carries_the_cursor_and_follow_goes_on_behind_it(
    alice: User, conversation: Conversation, worker: StepWorker
) -> None:
    sent = await send(alice, conversation, "one")
    attempt = worker.claim()
    attempt.write("a", "b")
    async with Socket(alice, conversation.pk) as socket:
        cursor = (await socket.until("delta"))["id"]
        assert cursor == f"{attempt.claim.mark}:2"
    attempt.write("c")
    async with Socket(alice, conversation.pk) as socket:
        await socket.until("delta")
        await socket.say({"type": "follow", "generation": str(sent.generation.pk), "after": cursor})
        assert (await socket.until("delta"))["data"]["content"] == "c"


async def test_follow_of_an_ended_answer_is_a_snapshot(
    alice: User, conversation: Conversation, worker: StepWorker
) -> None:
    sent = await send(alice, conversation, "one")
    await finish(worker, "text")
    async with Socket(alice, conversation.pk) as socket:
        await socket.say({"type": "follow", "generation": str(sent.generation.pk)})
        done = await socket.until("done")
    assert (done["data"]["snapshot"], done["data"]["content"]) == (True, "text")


async def test_stop_is_durable(alice: User, conversation: Conversation, worker: StepWorker) -> None:
    sent = await send(alice, conversation, "one")
    attempt = worker.claim()
    async with Socket(alice, conversation.pk) as socket:
        await socket.say({"type": "stop", "generation": str(sent.generation.pk)})
        async with asyncio.timeout(SECONDS):
            while not worker.room.standing(attempt.id).stop_requested:
                await asyncio.sleep(0.01)
    await in_thread(sent.generation.refresh_from_db)()
    assert sent.generation.stop_requested


async def test_strangers_and_bad_ids_are_closed_with_4404_and_anonymous_with_4401(
    alice: User, bob: User, sam: User, conversation: Conversation
) -> None:
    for user, conversation_id, code in [
        (bob, conversation.pk, 4404),
        (sam, conversation.pk, 4404),
        (alice, "x", 4404),
        (None, conversation.pk, 4401),
    ]:
        async with Socket(user, conversation_id) as socket:
            assert await socket.until_closed() == code


async def test_generations_of_others_can_be_neither_followed_nor_stopped(
    alice: User, bob: User, conversation: Conversation, worker: StepWorker
) -> None:
    sent = await send(alice, conversation, "secret")
    attempt = worker.claim()
    attempt.write("secret answer")
    theirs = await in_thread(actions_send.start_conversation)(bob)
    async with Socket(bob, theirs.pk) as socket:
        for verb in ("follow", "stop"):
            await socket.say({"type": verb, "generation": str(sent.generation.pk)})
            await socket.until("error", code="not_found")
    assert "secret" not in str(socket.frames)
    assert not worker.room.standing(attempt.id).stop_requested


@pytest.mark.parametrize(
    "text",
    [" ", "{", "[]", "null", '"x"', '{"type":"follow"}', '{"type":"drop","generation":"x"}', '{"type":1}', "\x00"],
)
async def test_bad_frame_is_answered_and_the_socket_lives(
    text: str, alice: User, conversation: Conversation, worker: StepWorker
) -> None:
    async with Socket(alice, conversation.pk) as socket:
        await socket.communicator.send_to(text_data=text)
        await socket.until("error", code="bad_frame")
        await socket.communicator.send_to(bytes_data=b"\xff\xfe")
        await socket.until("error", code="bad_frame")
        await send(alice, conversation, "still there?")
        await finish(worker, "yes")
        await socket.until("done")


async def test_long_frames_and_too_many_are_refused(
    alice: User, conversation: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "MAX_FRAMES_PER_MINUTE", 2)
    async with Socket(alice, conversation.pk) as socket:
        await socket.communicator.send_to(text_data="x" * 5_000)
        await socket.until("error", code="too_long")
        for _ in range(3):
            await socket.say({})
        await socket.until("error", code="too_many")
        assert (await socket.communicator.receive_output())["code"] == websocket.TOO_MANY


async def test_leaving_gives_everything_back(
    alice: User, conversation: Conversation, hub: Hub, worker: StepWorker
) -> None:
    await send(alice, conversation, "one")
    async with Socket(alice, conversation.pk) as socket:
        await socket.until("status")
        assert hub.num_viewers == 1
    assert hub.num_viewers == 0
    assert not hub._mailboxes
    assert not limits._open


async def test_spent_budget_closes_and_asks_to_come_again(
    alice: User, conversation: Conversation, worker: StepWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "Budget", lambda **_: Budget(max_bytes=500))
    await send(alice, conversation, "one")
    worker.claim().write("x" * 2_000)
    async with Socket(alice, conversation.pk) as socket:
        assert await socket.until_closed() == 4000


async def test_streams_of_one_user_are_counted(
    alice: User, conversation: Conversation, site: Callable[..., None]
) -> None:
    site(max_streams_per_user=1)
    async with Socket(alice, conversation.pk) as first:
        await first.say({})
        await first.until("error")  # it has its place
        async with Socket(alice, conversation.pk) as second:
            assert await second.until_closed() == 4429


async def test_foreign_origin_is_refused_before_anything_else(alice: User, conversation: Conversation) -> None:
    from chatsite.asgi import application

    browser = Client()
    await in_thread(browser.force_login)(alice)
    cookie = f"sessionid={browser.cookies['sessionid'].value}".encode()
    for origin, is_welcome in [(b"https://evil.example", False), (None, False), (b"http://localhost", True)]:
        headers = [(b"cookie", cookie), (b"host", b"localhost"), *([(b"origin", origin)] if origin else [])]
        communicator = Communicator(application, f"/ws/chat/{conversation.pk}", headers=headers)
        is_accepted, _ = await communicator.connect(SECONDS)
        assert is_accepted == is_welcome
        await communicator.disconnect()
