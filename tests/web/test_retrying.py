"""Answers written once more: in another way for once, after a deletion, on from where one was stopped."""

# ruff: noqa: F811  (fixtures are imported, then asked for by their names)

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.test import Client

from chatsite.accounts.models import User
from chatsite.chat.actions import answer as actions_answer
from chatsite.chat.actions import retry, tree
from chatsite.chat.generation import request
from chatsite.chat.models import Conversation, Generation
from inference.messages.generation import FinishReason
from tests.web.chat_worker import MODEL, StepWorker
from tests.web.test_actions import answer
from tests.web.tree import asked, path_of  # noqa: F401  (fixtures)

HX = {"HX-Request": "true"}


@pytest.mark.parametrize(
    ("form", "model", "thinking", "question"),
    [
        ({}, MODEL, None, "why"),
        ({"model": "other"}, "other", None, "why"),
        ({"thinking": "off"}, MODEL, False, "why"),
        ({"thinking": "on"}, MODEL, True, "why"),
        ({"style": "shorter"}, MODEL, None, f"why\n\n{retry.STYLES['shorter']}"),
    ],
)
def test_an_answer_is_written_again_in_another_way_for_once(
    form: dict[str, str],
    model: str,
    thinking: bool | None,
    question: str,
    owner: Client,
    conversation: Conversation,
    asked: Callable[..., actions_answer.Sent],
    worker: StepWorker,
) -> None:
    sent = asked("why")
    Generation.objects.filter(message=sent.answer).update(model="other")  # the site has known it
    done = owner.post(f"/chat/messages/{sent.answer.pk}/again/", form, headers=HX)
    assert done.status_code == 200
    generation = Generation.objects.get(status="active")
    assert generation.model == model
    frozen = request.frozen_request_of(generation)
    assert (frozen.thinking, frozen.messages[-1].content) == (thinking, question)
    conversation.refresh_from_db()
    assert (conversation.model, conversation.thinking) == ("", None)
    assert path_of(conversation) == ["why", ""]


def test_unknown_ways_are_refused(owner: Client, asked: Callable[..., actions_answer.Sent]) -> None:
    sent = asked("why")
    for form in ({"model": "nobody's"}, {"style": "longer"}):
        refused = owner.post(f"/chat/messages/{sent.answer.pk}/again/", form, headers=HX)
        assert (refused.status_code, refused["HX-Retarget"]) == (400, "#refusal")
    assert not Generation.objects.filter(status="active").exists()


def test_the_ways_are_offered_with_what_is_served(
    owner: Client, asked: Callable[..., actions_answer.Sent], worker: StepWorker
) -> None:
    sent = asked("why")
    Generation.objects.filter(message=sent.answer).update(model="older")
    worker.announce()
    ways = owner.get(f"/chat/messages/{sent.answer.pk}/again/", headers=HX).content.decode()
    assert f'name="model" value="{MODEL}"' in ways
    assert 'value="shorter"' in ways
    assert 'name="thinking" value="on"' in ways
    assert "<!doctype" not in ways
    assert "<!doctype" in owner.get(f"/chat/messages/{sent.answer.pk}/again/").content.decode()


def test_a_question_whose_answer_was_deleted_is_answered_anew(
    owner: Client,
    alice: User,
    conversation: Conversation,
    asked: Callable[..., actions_answer.Sent],
    worker: StepWorker,
) -> None:
    sent = asked("why")
    tree.remove(alice, sent.answer)
    assert b"Answer this" in owner.get(f"/chat/{conversation.pk}/").content
    owner.post(f"/chat/messages/{sent.message.pk}/retry/")
    answer(worker, "because")
    assert path_of(conversation) == ["why", "because"]


def test_a_stopped_answer_offers_to_go_on(
    owner: Client, conversation: Conversation, asked: Callable[..., actions_answer.Sent]
) -> None:
    sent = asked("why", "Because of", reason=FinishReason.CANCELLED)
    page = owner.get(f"/chat/{conversation.pk}/").content.decode()
    assert f"/chat/messages/{sent.answer.pk}/resume/" in page
    assert owner.post(f"/chat/messages/{sent.answer.pk}/resume/", headers=HX).status_code == 200
    assert Generation.objects.get(status="active").message.parent_id == sent.message.pk  # type: ignore[union-attr]
    assert owner.post(f"/chat/messages/{sent.answer.pk}/resume/", headers=HX).status_code == 409
