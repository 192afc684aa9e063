"""Who may follow an answer over SSE, how often at once, and until when."""

from __future__ import annotations

from typing import Any

import pytest
from channels.db import database_sync_to_async
from django.test import Client

from chatsite.accounts.models import User
from chatsite.chat.actions import answer
from chatsite.chat.streams import limits, sse
from tests.web.chat_worker import StepWorker
from tests.web.sse_client import Stream

in_thread = database_sync_to_async
pytestmark = pytest.mark.usefixtures("hub")


async def test_strangers_staff_and_bad_ids_get_the_same_404(
    bob: User, sam: User, alice: User, sent: answer.Sent
) -> None:
    bodies = set()
    for user, generation_id in [
        (bob, sent.generation.pk),
        (sam, sent.generation.pk),
        (alice, sent.message.pk),
        (alice, "x"),
        (alice, "%00"),
    ]:
        async with Stream(user, generation_id) as stream:
            await stream.to_end()
            bodies.add((stream.status, stream.body))
    assert len(bodies) == 1
    assert bodies.pop()[0] == 404


async def test_anonymous_gets_401_and_other_methods_405(alice: User, sent: answer.Sent) -> None:
    async with Stream(None, sent.generation.pk) as stream:
        assert stream.status == 401
    async with Stream(alice, sent.generation.pk, method="POST") as stream:
        assert stream.status == 405


async def test_streams_of_one_user_are_counted_and_given_back(
    alice: User, bob: User, sent: answer.Sent, site: Any
) -> None:
    site(max_streams_per_user=2)
    one, two = Stream(alice, sent.generation.pk), Stream(alice, sent.generation.pk)
    async with one, two:
        async with Stream(alice, sent.generation.pk) as third:
            assert third.status == 429
            assert third.headers[b"retry-after"]
        async with Stream(bob, sent.generation.pk) as stranger:
            assert stranger.status == 404
    async with Stream(alice, sent.generation.pk) as stream:
        assert stream.status == 200
    assert not limits._open


async def test_signing_out_ends_the_stream(
    alice: User, sent: answer.Sent, worker: StepWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "RECHECK_SECONDS", 0.05)
    monkeypatch.setattr(sse, "PING_SECONDS", 0.05)
    from chatsite.asgi import application

    browser = Client()
    await in_thread(browser.force_login)(alice)
    cookie = browser.cookies["sessionid"].value
    stream = Stream(None, sent.generation.pk, app=application)
    del stream.communicator.scope["user"]
    stream.communicator.scope["headers"] = [(b"cookie", f"sessionid={cookie}".encode()), (b"host", b"localhost")]
    async with stream:
        assert stream.status == 200
        await stream.next_part()
        await in_thread(browser.logout)()
        await stream.to_end()
    assert not any(event.event == "done" for event in stream.events)
