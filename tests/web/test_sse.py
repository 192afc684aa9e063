"""An answer over SSE: gapless from every cursor, ended only by what is durable."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis as redis_py
from channels.db import database_sync_to_async

from chatsite.accounts.models import User
from chatsite.chat.actions import answer, organize
from chatsite.chat.generation import record as generation_record
from chatsite.chat.models import Conversation, Generation
from chatsite.chat.rendering.stream import blocks
from chatsite.chat.streams import follow, limits, sse
from chatsite.chat.streams.hub import Hub
from chatsite.chat.text import sha256_of
from inference.messages.generation import ErrorFacts, FinishReason
from tests.web.chat_worker import Attempt, StepWorker
from tests.web.sse_client import Shown, Stream

PIECES = [
    "# Hi\n",
    "\nA *par",
    "agraph* with 👩‍💻\n\n",
    "```py\nprint(",
    "1)\n```\n",
    "\n1. one\n2. t",
    "wo\n\nend <b>",
]
TEXT = "".join(PIECES)

in_thread = database_sync_to_async
pytestmark = pytest.mark.usefixtures("hub")


async def record(attempt: Attempt) -> None:
    await in_thread(generation_record.record)(attempt.id)


async def test_whole_answer_live(alice: User, sent: answer.Sent, worker: StepWorker) -> None:
    attempt = worker.claim().start()
    async with Stream(alice, sent.generation.pk) as stream:
        assert stream.status == 200
        attempt.think("let me ", "see")
        await stream.until("delta")
        for piece in PIECES:
            attempt.write(piece)
            await asyncio.sleep(0)
        attempt.finish()
        await stream.until_text(TEXT)
        assert not any(event.event == "done" for event in stream.events)  # it is not in Postgres yet
        await record(attempt)
        await stream.to_end()
    assert stream.body.startswith("retry: 1000\n\n")
    shown = Shown().take(stream.events)
    assert (shown.content, shown.reasoning, shown.tail) == (TEXT, "let me see", "")
    assert shown.blocks == blocks(TEXT)
    assert shown.done is not None
    assert "snapshot" not in shown.done
    assert (shown.done["status"], shown.done["finish_reason"], shown.done["error"]) == ("done", "stop", None)
    assert shown.done["content_sha256"] == sha256_of(TEXT)
    assert shown.done["num_chars"] == len(TEXT)
    assert shown.done["usage"]["completion_tokens"] == 7
    assert shown.done["html"].strip().startswith("<article")
    assert {event.data["phase"] for event in stream.events if event.event == "status"} >= {"thinking"}


async def test_resume_from_every_cursor_gives_the_same_text_and_blocks(
    alice: User, sent: answer.Sent, worker: StepWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that saw the log up to any seq, and then a live stream or one after the end: always the same page."""
    attempt = worker.claim().start()
    marks = attempt.claim.mark
    shown_at: dict[int, Shown] = {0: Shown(), 1: Shown()}
    for seq, piece in enumerate(PIECES, start=2):
        attempt.write(piece)
        page = Shown()
        from chatsite.chat.rendering.stream import BlockStream

        update = BlockStream().feed("".join(PIECES[: seq - 1]))
        page.content, page.blocks, page.tail = "".join(PIECES[: seq - 1]), update.blocks, update.tail
        shown_at[seq] = page
    opened = {seq: Stream(alice, sent.generation.pk, after=f"{marks}:{seq}") for seq in shown_at}
    for stream in opened.values():
        await stream.__aenter__()
    attempt.finish()
    await record(attempt)
    for seq, stream in opened.items():
        page = shown_at[seq].take(await stream.to_end())
        assert (page.content, page.tail) == (TEXT, "")
        assert page.blocks == blocks(TEXT)
        assert not any(event.event == "reset" for event in stream.events)
        await stream.leave()
    async with Stream(alice, sent.generation.pk, after=f"{marks}:3") as stream:
        (done,) = await stream.to_end()
        assert done.data["snapshot"]
        assert (done.data["content"], done.event) == (TEXT, "done")


async def test_twenty_reconnects_lose_and_repeat_nothing(alice: User, sent: answer.Sent, worker: StepWorker) -> None:
    attempt = worker.claim().start()
    page, cursor = Shown(), ""
    for number in range(20):
        attempt.write(f"{number} *x* \n\n" if number % 3 else f"{number}, ")
        expected = attempt.text
        stream = Stream(alice, sent.generation.pk, header=cursor)
        async with stream:
            remaining = expected[len(page.content) :]
            await stream.until_text(remaining)
        ids = [event.id for event in stream.events if event.id]
        page.take(stream.events)
        cursor = ids[-1]
        assert page.content == expected
    attempt.finish()
    await record(attempt)
    async with Stream(alice, sent.generation.pk, header=cursor) as stream:
        assert (await stream.to_end())[-1].data["content"] == attempt.text


async def test_header_is_newer_than_the_address(alice: User, sent: answer.Sent, worker: StepWorker) -> None:
    attempt = worker.claim()
    attempt.write("a", "b", "c")
    mark = attempt.claim.mark
    async with Stream(alice, sent.generation.pk, after=f"{mark}:1", header=f"{mark}:2") as stream:
        assert (await stream.until("delta")).data["content"] == "c"


@pytest.mark.parametrize("cursor", ["x", "a:b", "ff:1:2", "x" * 5000, "%00", "aa:99999999999999999999"])
async def test_cursor_that_is_none_starts_from_the_beginning(
    cursor: str, alice: User, sent: answer.Sent, worker: StepWorker
) -> None:
    worker.claim().write("a", "b")
    async with Stream(alice, sent.generation.pk, after=cursor, header=cursor) as stream:
        await stream.until_text("ab")


async def test_forged_cursor_beyond_the_log_still_ends(alice: User, sent: answer.Sent, worker: StepWorker) -> None:
    attempt = worker.claim()
    attempt.write("text")
    async with Stream(alice, sent.generation.pk, after=f"{attempt.claim.mark}:500") as stream:
        attempt.finish()
        await record(attempt)
        assert (await stream.to_end())[-1].event == "done"


async def test_other_log_resets_and_tells_only_the_new_text(
    alice: User, sent: answer.Sent, worker: StepWorker, redis: redis_py.Redis
) -> None:
    attempt = worker.claim().start()
    attempt.write("old text")
    async with Stream(alice, sent.generation.pk) as stream:
        await stream.until_text("old text")
        redis.flushall()
        worker.room.enter(attempt.claim.request)
        again = worker.claim().start()
        again.write("new")
        await stream.until("reset")
        await stream.until_text("new")
        again.finish()
        await record(again)
        await stream.to_end()
    shown = Shown().take(stream.events)
    assert shown.content == "new"
    assert shown.done is not None
    assert shown.done["content_sha256"] == sha256_of("new")


async def test_log_lost_after_the_end_is_told_from_postgres(
    alice: User, sent: answer.Sent, worker: StepWorker, redis: redis_py.Redis
) -> None:
    """Redis dies between the commit and `recorded`: the viewer hears of the end all the same, and sees the text."""
    attempt = worker.claim()
    attempt.write("text")
    async with Stream(alice, sent.generation.pk) as stream:
        await stream.until_text("text")
        found = worker.log.read(attempt.id)
        attempt.finish()
        finish = worker.log.read(attempt.id).finish
        assert finish is not None
        await in_thread(generation_record.end_from_log)(attempt.id, found, finish)
        redis.flushall()
        done = (await stream.to_end())[-1]
    assert (done.event, done.data["snapshot"], done.data["content"]) == ("done", True, "text")


async def test_failure_is_told_with_its_reason(alice: User, sent: answer.Sent, worker: StepWorker) -> None:
    attempt = worker.claim()
    attempt.write("so far")
    attempt.finish(FinishReason.ERROR, ErrorFacts(code="bad_logits", message="It broke.", retryable=True))
    await record(attempt)
    async with Stream(alice, sent.generation.pk) as stream:
        done = (await stream.to_end())[-1].data
    assert done["status"] == "failed"
    assert done["error"] == {"code": "bad_logits", "message": "It broke.", "retryable": True}


async def test_headers_forbid_buffering_and_sniffing(alice: User, sent: answer.Sent) -> None:
    async with Stream(alice, sent.generation.pk) as stream:
        headers = stream.headers
    assert headers[b"content-type"] == b"text/event-stream; charset=utf-8"
    assert headers[b"cache-control"] == b"no-cache, no-transform"
    assert headers[b"x-accel-buffering"] == b"no"
    assert headers[b"x-content-type-options"] == b"nosniff"
    assert b"default-src 'none'" in headers[b"content-security-policy"]


async def test_leaving_is_noticed_at_once_and_stops_nothing(
    alice: User, sent: answer.Sent, hub: Hub, worker: StepWorker
) -> None:
    attempt = worker.claim()
    async with Stream(alice, sent.generation.pk) as stream:
        assert hub.num_viewers == 1
        await stream.leave()
        assert hub.num_viewers == 0
    attempt.write("goes on")
    assert not worker.room.standing(attempt.id).stop_requested


async def test_budget_spent_ends_cleanly_and_the_client_goes_on(
    alice: User, sent: answer.Sent, worker: StepWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A viewer that never reads costs so many bytes and no more: the response ends, without `done`."""
    monkeypatch.setattr(sse, "Budget", lambda: limits.Budget(max_bytes=3_000))
    attempt = worker.claim()
    page, cursor, num_streams = Shown(), "", 0
    while len(page.content) < 20_000 or page.content != attempt.text:
        if len(attempt.text) < 20_000:
            attempt.write("y" * 500)
        async with Stream(alice, sent.generation.pk, after=cursor) as stream:
            attempt.write("z" * 5_000)
            await stream.to_end()
        num_streams += 1
        assert not any(event.event == "done" for event in stream.events)
        assert len(stream.body) < 60_000
        page.take(stream.events)
        cursor = [event.id for event in stream.events if event.id][-1]
        assert attempt.text.startswith(page.content)
        if num_streams > 50:
            break
    assert num_streams > 1


async def test_news_of_a_moment_travels_together(alice: User, sent: answer.Sent, worker: StepWorker) -> None:
    attempt = worker.claim()
    async with Stream(alice, sent.generation.pk) as stream:
        attempt.write(*["x"] * 500)
        await stream.until_text("x" * 500)
    assert sum(event.event == "delta" for event in stream.events) < 100


async def test_deleted_conversation_ends_the_stream(
    alice: User, sent: answer.Sent, conversation: Conversation, worker: StepWorker
) -> None:
    worker.claim().write("text")
    async with Stream(alice, sent.generation.pk) as stream:
        await stream.until_text("text")
        await in_thread(organize.delete)(alice, conversation)
        assert not any(event.event == "done" for event in await stream.to_end())


async def test_no_database_connection_is_held_while_streaming(
    alice: User, sent: answer.Sent, worker: StepWorker
) -> None:
    def num_connections() -> int:
        from django.db import connection

        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state <> 'idle'"
            )
            return cursor.fetchone()[0]

    worker.claim().write("text")
    opened = [Stream(alice, sent.generation.pk) for _ in range(20)]
    for stream in opened:
        await stream.__aenter__()
    assert await in_thread(num_connections)() == 1
    for stream in opened:
        await stream.leave()


async def test_two_hundred_viewers_cost_one_subscription(
    alice: User, sent: answer.Sent, hub: Hub, worker: StepWorker, site: Any, redis: redis_py.Redis
) -> None:
    site(max_streams_per_user=1000)
    attempt = worker.claim()
    opened = [Stream(alice, sent.generation.pk) for _ in range(200)]
    await asyncio.gather(*[stream.__aenter__() for stream in opened])
    assert hub.num_viewers == 200
    assert redis.pubsub_numsub(hub.client.news_channel(attempt.id))[0][1] == 1
    attempt.write("for all")
    await asyncio.gather(*[stream.until_text("for all") for stream in opened])
    await asyncio.gather(*[stream.leave() for stream in opened])
    assert hub.num_viewers == 0


def test_frame_is_one_event_whatever_its_text() -> None:
    frame = follow.Frame("delta", {"content": "a\n\nevent: done\ndata: {}\r\n\x00"}, id="ab:1")
    body = frame.to_sse().decode()
    assert body.count("\n") == 4
    assert body.startswith("event: delta\nid: ab:1\ndata: {")


def test_generation_rows_stay_ended(alice: User, sent: answer.Sent, worker: StepWorker) -> None:
    attempt = worker.claim()
    attempt.finish()
    generation_record.record(attempt.id)
    assert not generation_record.end_without_log(attempt.id, FinishReason.CANCELLED)
    assert Generation.objects.get().status == "done"
