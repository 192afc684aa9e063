"""Going on with an answer that was stopped, cut or broken off; and answers that are given whole."""

from __future__ import annotations

import pytest
from django.http import Http404
from django.test import Client

from chatsite.accounts.models import User
from chatsite.chat import errors
from chatsite.chat.actions import quote, retry, send
from chatsite.chat.generation import record
from chatsite.chat.models import Conversation, Message
from inference.messages.generation import ErrorFacts, FinishReason, GenerationRequest, Opening
from tests.web.chat_worker import StepWorker

UNFINISHED = [
    (FinishReason.CANCELLED, "", True),
    (FinishReason.ERROR, "", True),
    (FinishReason.LENGTH, "max_tokens", True),
    (FinishReason.LENGTH, "context", True),
    (FinishReason.LENGTH, "time", True),
    (FinishReason.LENGTH, "loop", False),
    (FinishReason.STOP, "", False),
]


def answered(
    worker: StepWorker, user: User, conversation: Conversation, reason: FinishReason, cut: str = "", text: str = "Once"
) -> Message:
    sent = send.send_message(user, conversation, "a story")
    attempt = worker.claim().start()
    attempt.think("hm")
    if text:
        attempt.write(text)
    error = ErrorFacts(code="x", message="It broke.", retryable=True) if reason is FinishReason.ERROR else None
    attempt.finish(reason, error=error, cut=cut)
    record.record(attempt.id)
    return Message.objects.get(pk=sent.answer.pk)


def asked_of(worker: StepWorker) -> GenerationRequest:
    return worker.claim().claim.request


@pytest.mark.parametrize(("reason", "cut", "goes_on"), UNFINISHED)
def test_only_an_unfinished_answer_goes_on(
    reason: FinishReason, cut: str, goes_on: bool, alice: User, conversation: Conversation, worker: StepWorker
) -> None:
    answer = answered(worker, alice, conversation, reason, cut)
    if not goes_on:
        with pytest.raises(errors.NothingToResume):
            retry.resume(alice, answer)
        return
    sent = retry.resume(alice, answer)
    assert sent.answer.parent_id == answer.parent_id
    assert sent.answer.pk != answer.pk, "the version before stays"
    request = asked_of(worker)
    assert request.opening == Opening(content="Once", reasoning="hm")
    assert [m.content for m in request.messages] == ["a story"], "what was said is the answer's beginning, no turn"
    conversation.refresh_from_db()
    assert conversation.leaf_id == sent.answer.pk


def test_a_broken_off_thought_can_go_on(alice: User, conversation: Conversation, worker: StepWorker) -> None:
    answer = answered(worker, alice, conversation, FinishReason.CANCELLED, text="")
    retry.resume(alice, answer)
    assert asked_of(worker).opening == Opening(reasoning="hm")


def test_nobody_goes_on_with_anothers_answer(
    alice: User, bob: User, conversation: Conversation, worker: StepWorker
) -> None:
    answer = answered(worker, alice, conversation, FinishReason.CANCELLED)
    with pytest.raises(Http404):
        retry.resume(bob, answer)
    with pytest.raises(errors.NotAnAnswer):
        retry.resume(alice, answer.parent or answer)


def test_a_question_or_a_running_answer_is_refused(alice: User, conversation: Conversation, worker: StepWorker) -> None:
    sent = send.send_message(alice, conversation, "hello")
    with pytest.raises(errors.AnswerRunning):
        retry.resume(alice, sent.answer)


def test_quote_recites_the_fixed_document(alice: User, conversation: Conversation, worker: StepWorker) -> None:
    quote.quote(alice, conversation)
    opening = asked_of(worker).opening
    assert opening is not None
    assert opening.is_whole
    assert opening.content == quote.document()
    assert opening.tokens_per_second == quote.TOKENS_PER_SECOND


def test_quote_by_form_begins_a_conversation_or_goes_on_in_one(
    alice: User, conversation: Conversation, worker: StepWorker
) -> None:
    client = Client()
    client.force_login(alice)
    begun = client.post("/chat/quote/")
    assert begun.status_code == 302
    assert alice.conversations.count() == 2
    inside = client.post("/chat/quote/", {"conversation": str(conversation.pk)})
    assert inside["Location"] == f"/chat/{conversation.pk}/"
    assert conversation.messages.count() == 2
    assert client.post("/chat/quote/", {"conversation": "nonsense"}).status_code == 404
