"""A conversation is named by the model once, after its first answer, if nobody named it before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from chatsite.accounts import limits
from chatsite.accounts.models import User
from chatsite.chat.actions import organize, quote, retry, send
from chatsite.chat.generation import record, titles
from chatsite.chat.models import Conversation, Generation
from inference.messages.generation import ErrorFacts, FinishReason
from tests.web.chat_worker import StepWorker


@pytest.fixture
def titled(site: Callable[..., None], worker: StepWorker, conversation: Conversation) -> Conversation:
    site(model_titles=True)
    worker.announce()
    return conversation


def answer(worker: StepWorker, text: str, reason: FinishReason = FinishReason.STOP, **facts: Any) -> Any:
    attempt = worker.claim().start()
    attempt.write(text)
    attempt.finish(reason, **facts)
    record.record(attempt.id)
    return attempt.claim.request


def titles_of(conversation: Conversation) -> list[Generation]:
    return list(Generation.objects.filter(source=Generation.Source.TITLE, conversation=conversation))


def test_first_answer_is_followed_by_a_title(alice: User, titled: Conversation, worker: StepWorker) -> None:
    send.send_message(alice, titled, "why is the sky blue, please?")
    answer(worker, "Because of Rayleigh scattering.")
    (asked,) = titles_of(titled)
    assert limits.num_active(alice) == 0, "a title is not one of a person's answers"
    request = answer(worker, '"Why the Sky Is Blue."\n')
    assert request.id == asked.pk
    assert request.priority > 0
    assert request.thinking is False
    assert request.sampling.max_tokens == titles.MAX_TOKENS
    assert "Rayleigh" in request.messages[0].content
    titled.refresh_from_db()
    assert titled.title == "Why the Sky Is Blue"
    assert not titled.is_title_own
    assert not titled.messages.exclude(generation__isnull=True, role="assistant").filter(
        content__contains="Why the Sky"
    )


def test_people_go_first_however_late_they_come(
    alice: User, bob: User, titled: Conversation, worker: StepWorker
) -> None:
    send.send_message(alice, titled, "hello")
    answer(worker, "hi")
    sent = send.send_message(bob, send.start_conversation(bob), "me first")
    assert answer(worker, "yes").id == sent.generation.pk


def test_own_title_wins_also_against_one_being_written(alice: User, titled: Conversation, worker: StepWorker) -> None:
    send.send_message(alice, titled, "hello")
    answer(worker, "hi")
    organize.rename(alice, titled, "Mine")
    answer(worker, "The model's")
    titled.refresh_from_db()
    assert titled.title == "Mine"


def test_later_answers_retries_and_named_conversations_ask_for_none(
    alice: User, titled: Conversation, worker: StepWorker
) -> None:
    organize.rename(alice, titled, "Mine")
    first = send.send_message(alice, titled, "hello")
    answer(worker, "hi")
    organize.rename(alice, titled, "")
    send.send_message(alice, titled, "and?")
    answer(worker, "more")
    assert titles_of(titled) == []
    retry.retry(alice, first.answer)
    answer(worker, "hi again")
    assert len(titles_of(titled)) == 1
    answer(worker, "A Greeting")
    retry.retry(alice, first.answer)
    answer(worker, "hi once more")
    assert len(titles_of(titled)) == 1


@pytest.mark.parametrize("reason", [FinishReason.CANCELLED, FinishReason.ERROR])
def test_unanswered_questions_keep_their_first_words(
    reason: FinishReason, alice: User, titled: Conversation, worker: StepWorker
) -> None:
    send.send_message(alice, titled, "hello there")
    error = ErrorFacts(code="x", message="x.") if reason is FinishReason.ERROR else None
    answer(worker, "hi", reason, error=error)
    assert titles_of(titled) == []
    titled.refresh_from_db()
    assert titled.title == "hello there"


def test_a_recited_document_is_not_named(alice: User, titled: Conversation, worker: StepWorker) -> None:
    quote.quote(alice, titled)
    answer(worker, "whatever")
    assert titles_of(titled) == []


def test_a_failed_title_leaves_the_first_words(alice: User, titled: Conversation, worker: StepWorker) -> None:
    send.send_message(alice, titled, "hello there")
    answer(worker, "hi")
    answer(worker, "Bad", FinishReason.ERROR, error=ErrorFacts(code="x", message="x."))
    titled.refresh_from_db()
    assert titled.title == "hello there"


@pytest.mark.parametrize(
    ("said", "title"),
    [
        ("Tea and Coffee", "Tea and Coffee"),
        ("\n  **Title: “Tea & Coffee”.**  \nmore", "Tea & Coffee"),
        ("# Tea", "Tea"),
        ("C++ basics", "C++ basics"),
        ("Was ist Regen?", "Was ist Regen?"),
        ("<think>hm", ""),
        ("…", ""),
        ("", ""),
        ("word " * 13, ""),
        ("x" * 81, ""),
        ("一つの題", "一つの題"),
    ],
)
def test_only_what_looks_like_a_title_becomes_one(said: str, title: str) -> None:
    assert titles.title_from(said) == title
