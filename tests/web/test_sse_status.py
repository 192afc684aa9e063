"""What a stream says while no text comes: the place in the room, the reading, a worker lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from channels.db import database_sync_to_async

from chatsite.accounts.models import User
from chatsite.chat import tasks
from chatsite.chat.actions import answer, send
from tests.web.chat_worker import StepWorker
from tests.web.sse_client import Stream

in_thread = database_sync_to_async
pytestmark = pytest.mark.usefixtures("hub")


async def test_status_says_place_then_reading_then_writing(
    alice: User, site: Callable[..., None], worker: StepWorker
) -> None:
    worker.announce()
    sents = [
        await in_thread(send.send_message)(alice, await in_thread(send.start_conversation)(alice), "hi")
        for _ in range(2)
    ]
    async with Stream(alice, sents[1].generation.pk) as stream:
        status = await stream.until("status")
        assert (status.data["phase"], status.data["position"], status.data["of"]) == ("waiting", 2, 2)
        worker.claim()
        while (await stream.until("status", len(statuses(stream)) + 1)).data.get("position") != 1:
            pass
        attempt = worker.claim().start()
        attempt.progress(512, 2048)
        while (status := await stream.until("status", len(statuses(stream)) + 1)).data.get("done") != 512:
            pass
        assert status.data == {"phase": "reading", "done": 512, "total": 2048, "worker": worker.name}
        attempt.write("text")
        while (status := await stream.until("status", len(statuses(stream)) + 1)).data["phase"] != "writing":
            pass
        assert status.data["tokens"] == 1


def statuses(stream: Stream) -> list[Any]:
    return [event for event in stream.events if event.event == "status"]


async def test_status_says_that_no_worker_serves_or_one_is_loading(
    alice: User, sent: answer.Sent, worker: StepWorker
) -> None:
    async with Stream(alice, sent.generation.pk) as stream:
        assert (await stream.until("status")).data["phase"] == "no_worker"
        worker.announce(state="loading")
        assert (await stream.until("status", 2)).data["phase"] == "loading"


async def test_status_says_that_a_lost_worker_is_replaced(
    alice: User, sent: answer.Sent, worker: StepWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chatsite.chat.streams.progress.SILENT_SECONDS", 0.2)
    worker.announce()
    attempt = worker.claim().start()
    attempt.write("half")
    async with Stream(alice, sent.generation.pk) as stream:
        await stream.until_text("half")
        worker.leases.lapse(attempt.id, force=True)
        while (await stream.until("status", len(statuses(stream)) + 1)).data["phase"] != "recovering":
            pass
        await in_thread(tasks._sweep_active)(attempt.id)
        again = worker.claim().start()
        again.write(" and half")
        await stream.until_text("half and half")
