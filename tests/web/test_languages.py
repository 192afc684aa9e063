"""Whose language a page, a refusal and a stream speak: the reader's, never that of somebody else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.test import Client
from django.utils import translation

from chatsite.accounts.models import User
from chatsite.chat.actions import send
from chatsite.chat.errors import MessageTooLong
from chatsite.chat.generation import record
from chatsite.chat.models import Conversation, Generation
from chatsite.chat.rendering.error_text import sentence_of
from chatsite.chat.streams import follow
from chatsite.chat.streams.hub import Hub
from chatsite.chat.streams.language import language_of
from tests.web.chat_worker import StepWorker

GERMAN = {"HTTP_ACCEPT_LANGUAGE": "de-DE,de;q=0.9,en;q=0.5"}
CODE = "```python\nprint(1)\n```\n"

pytestmark = pytest.mark.skipif(
    len(django_settings.LANGUAGES) < 2, reason="the catalogues are not compiled: `make catalogues` does it"
)


@pytest.fixture(autouse=True)
def own_language() -> Any:
    """A request leaves its language with the thread it ran in, which here is the test's."""
    with translation.override("en"):
        yield


def test_page_speaks_the_browsers_language_until_another_is_chosen(
    alice: User, site: Callable[..., None], redis: Any
) -> None:
    client = Client(**GERMAN)  # type: ignore[arg-type]
    client.force_login(alice)
    page = client.get("/")
    assert page["Content-Language"] == "de"
    assert '<html lang="de">' in page.content.decode()
    assert "Neuer Chat" in page.content.decode()
    chosen = client.post("/i18n/setlang/", {"language": "en", "next": "/?archived=1"})
    assert chosen["Location"] == "/?archived=1"
    cookie = client.cookies["django_language"]
    assert (cookie.value, cookie["samesite"], cookie["httponly"]) == ("en", "Lax", True)
    page = client.get("/")
    assert '<html lang="en">' in page.content.decode()
    assert "New chat" in page.content.decode()


def test_language_form_leads_to_this_site_alone(alice: User, redis: Any) -> None:
    answer = Client().post("/i18n/setlang/", {"language": "de", "next": "https://elsewhere.example/"})
    assert answer["Location"] == "/"


def test_page_in_a_language_that_is_not_here_is_english(site: Callable[..., None], redis: Any, db: None) -> None:
    page = Client(HTTP_ACCEPT_LANGUAGE="tlh,xx").get("/accounts/login/")
    assert '<html lang="en">' in page.content.decode()


def test_refusal_is_said_in_the_readers_language_with_their_numbers() -> None:
    with translation.override("de"):
        german = MessageTooLong(num_chars=1_234_567, max_chars=100_000).message
    assert "1.234.567" in german
    assert MessageTooLong(num_chars=1_234_567, max_chars=100_000).message == (
        "The message has 1,234,567 characters; at most 100,000 fit."
    )


def test_stream_takes_its_language_from_the_same_places_as_the_page() -> None:
    german = [(b"accept-language", b"de-AT,en;q=0.4")]
    assert language_of({"headers": german, "cookies": {}}) == "de"
    assert language_of({"headers": german, "cookies": {"django_language": "en"}}) == "en"
    assert language_of({"headers": german, "cookies": {"django_language": "../etc"}}) == "de"
    assert language_of({}) == "en"


async def test_two_viewers_of_one_answer_each_read_their_own_language(
    alice: User, conversation: Conversation, hub: Hub, worker: StepWorker
) -> None:
    sent = await asyncio.to_thread(send.send_message, alice, conversation, "Why?")
    attempt = await asyncio.to_thread(lambda: worker.claim().start())

    async def read(language: str | None) -> list[follow.Frame]:
        frames = follow.frames_of(hub, alice, sent.generation.pk, for_page=True, language=language)
        return [frame async for frame in frames]

    reading = [asyncio.create_task(read(language)) for language in ("de", "en", None)]
    await asyncio.to_thread(attempt.write, CODE, "and a word")
    await asyncio.to_thread(attempt.finish)
    await asyncio.to_thread(record.record, attempt.id)
    german, english, unnamed = await asyncio.gather(*reading)
    assert translation.get_language() == "en"
    for frames, words, alien in (
        (german, "Kopieren", ">Copy<"),
        (english, ">Copy<", "Kopieren"),
        (unnamed, ">Copy<", "Kopieren"),
    ):
        told = "".join(str(frame.data) for frame in frames)
        assert words in told, "the buttons of the code, or the bar of the answer"
        assert alien not in told
        assert words in frames[-1].data["html"]


async def test_snapshot_of_an_ended_answer_is_in_the_viewers_language(
    alice: User, conversation: Conversation, hub: Hub, worker: StepWorker
) -> None:
    sent = await asyncio.to_thread(send.send_message, alice, conversation, "Why?")
    attempt = await asyncio.to_thread(lambda: worker.claim().start())
    await asyncio.to_thread(attempt.write, CODE)
    await asyncio.to_thread(attempt.finish)
    await asyncio.to_thread(record.record, attempt.id)
    for language, words, alien in (("de", "Kopieren", ">Copy<"), ("en", ">Copy<", "Kopieren")):
        (frame,) = [f async for f in follow.frames_of(hub, alice, sent.generation.pk, language=language)]
        assert words in frame.data["html"]
        assert alien not in frame.data["html"]


def test_failure_is_told_in_the_readers_language_and_in_its_own_words_where_there_is_none() -> None:
    lost = Generation(error_code="worker_lost", error_message="Three workers were lost.")
    other = Generation(error_code="of_tomorrow", error_message="Something new.")
    assert (sentence_of(lost), sentence_of(other)) == ("Three workers were lost.", "Something new.")
    with translation.override("de"):
        assert (sentence_of(lost), sentence_of(other)) == (
            "Der Worker ging beim Schreiben dieser Antwort verloren.",
            "Something new.",
        )
