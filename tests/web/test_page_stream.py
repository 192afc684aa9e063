"""The stream as our own page asks for it: it ends up with what the server shows, wherever it was cut or loaded."""

from __future__ import annotations

import re

import pytest

from chatsite.accounts.models import User
from chatsite.chat.actions import answer
from chatsite.chat.generation import record as generation_record
from chatsite.chat.models import Message
from chatsite.chat.rendering import message as rendering_message
from chatsite.chat.rendering.stream import blocks, scope_of
from chatsite.chat.streams.follow import in_thread
from tests.unit.reading_html import assert_safe
from tests.unit.test_telling import Page
from tests.web.chat_worker import Attempt, StepWorker
from tests.web.sse_client import Stream

pytestmark = pytest.mark.usefixtures("hub")

TEXT = (
    "# Title\n\nSome **bold** words[^1] and `code`.\n\n- one *two*\n- three\n\n```py\nx = 1\n\n# no heading\n```\n\n"
    "| a | b |\n|---|---|\n| 1 | $x^2$ |\n\n[^1]: A *note* 😀.\n\nlast 😀 **words**"
)
PIECES = [TEXT[begin : begin + 9] for begin in range(0, len(TEXT), 9)]


async def record(attempt: Attempt) -> None:
    await in_thread(generation_record.record, attempt.id)


async def take(stream: Stream, page: Page, until_seq: int) -> str:
    """Frames into the page, until the one with that seq; the newest cursor."""
    cursor = ""
    while not cursor or int(cursor.rpartition(":")[2]) < until_seq:
        await stream.next_part()
        cursor = ([event.id for event in stream.events if event.id] or [""])[-1]
    for event in stream.events:
        assert event.event != "reset"
        if event.event == "delta":
            assert "content" not in event.data
            page.take(event.data)
    return cursor


async def test_page_that_is_cut_off_again_and_again_shows_the_same(
    alice: User, sent: answer.Sent, worker: StepWorker
) -> None:
    attempt = worker.claim().start()
    page, cursor, grown = Page(), "", Page()
    for number, piece in enumerate(PIECES):
        attempt.write(piece)
        if number % 4 == 3:  # comes, sees, and is cut off
            async with Stream(alice, sent.generation.pk, after=f"{cursor}&as=page") as stream:
                cursor = await take(stream, page, number)
            async with Stream(alice, sent.generation.pk, after="&as=page") as stream:
                grown = Page()
                await take(stream, grown, number)
            assert page.blocks == grown.blocks
            assert page.tail == grown.tail
    attempt.finish()
    await record(attempt)
    async with Stream(alice, sent.generation.pk, after="&as=page") as stream:
        whole = (await stream.to_end())[-1].data
    assert whole["snapshot"]
    assert whole["html"].count("</figure>") == 1


async def test_settled_article_leaves_out_what_the_page_shows(
    alice: User, sent: answer.Sent, worker: StepWorker
) -> None:
    attempt = worker.claim().start()
    attempt.write(*PIECES)
    async with Stream(alice, sent.generation.pk, after="&as=page") as stream:
        page = Page()
        await take(stream, page, len(PIECES))
        attempt.finish()
        await record(attempt)
        done = (await stream.to_end())[-1].data
    expected = blocks(TEXT, scope_of(sent.answer.pk))
    assert page.blocks + "".join(done["blocks"]) == "".join(expected)
    assert done["num_blocks"] == len(expected)
    assert re.search(r'<div class="body answer" hx-disable></div>', done["html"])
    assert "**bold**" in done["html"]  # the source, to be copied


async def test_page_is_told_the_status_in_words(alice: User, sent: answer.Sent, worker: StepWorker) -> None:
    worker.announce()
    attempt = worker.claim().start()
    attempt.progress(512, 2048)
    async with Stream(alice, sent.generation.pk, after="&as=page") as stream:
        number = 1
        while "percent" not in (status := await stream.until("status", number)).data:
            number += 1
    assert status.data == {"phase": "reading", "text": "Reading prompt 25 %", "percent": 25}


async def test_page_loaded_in_the_middle_shows_what_the_stream_shows(
    alice: User, sent: answer.Sent, worker: StepWorker
) -> None:
    attempt = worker.claim().start()
    async with Stream(alice, sent.generation.pk, after="&as=page") as stream:
        for number, piece in enumerate(PIECES):
            attempt.write(piece)
            if number % 3:
                continue
            message = await in_thread(lambda: Message.objects.select_related("generation").get(pk=sent.answer.pk))
            loaded = await in_thread(rendering_message.shown, message)
            assert_safe(loaded.html + loaded.tail)
            page = Page()
            while (page.blocks, page.tail) != (loaded.html, loaded.tail):
                await stream.next_part()
                page = Page()
                for event in stream.events:
                    if event.event == "delta":
                        page.take(event.data)
