"""Thumbs: one opinion per settled answer, changed and taken back, seen by review under its own rules."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.http import Http404
from django.test import Client

from chatsite.accounts.models import User
from chatsite.chat import errors
from chatsite.chat.actions import feedback, send
from chatsite.chat.generation import record
from chatsite.chat.models import Conversation, Feedback, Message
from chatsite.ops import metrics
from tests.web.chat_worker import MODEL, StepWorker

HX = {"HX-Request": "true"}


@pytest.fixture
def answer(alice: User, conversation: Conversation, worker: StepWorker) -> Message:
    sent = send.send_message(alice, conversation, "question")
    attempt = worker.claim().start()
    attempt.write("answer")
    attempt.finish()
    record.record(attempt.id)
    return sent.answer


@pytest.fixture
def owner(alice: User, answer: Message) -> Client:
    client = Client()
    client.force_login(alice)
    return client


def given() -> list[tuple[int, str, str]]:
    return list(Feedback.objects.values_list("rating", "reason", "comment"))


def pressed(html: str) -> list[str]:
    return re.findall(r'aria-pressed="(\w+)"', html)


def test_opinion_is_given_changed_explained_and_taken_back(owner: Client, answer: Message) -> None:
    address = f"/chat/messages/{answer.pk}/feedback/"
    page = owner.post(address, {"rating": "1"}, headers=HX)
    assert (given(), pressed(page.content.decode())) == ([(1, "", "")], ["true", "false"])
    page = owner.post(address, {"rating": "-1", "reason": "wrong", "comment": " two\r\nlines "}, headers=HX)
    assert given() == [(-1, "wrong", "two\nlines")]
    assert pressed(page.content.decode()) == ["false", "true"]
    assert '<option value="wrong" selected>' in page.content.decode()
    assert pressed(owner.get(f"/chat/{answer.conversation_id}/").content.decode())[-2:] == ["false", "true"]
    page = owner.post(address, {"rating": ""}, headers=HX)
    assert (given(), pressed(page.content.decode())) == ([], ["false", "false"])


def test_without_a_script_it_leads_back_to_the_answer(owner: Client, answer: Message) -> None:
    response = owner.post(f"/chat/messages/{answer.pk}/feedback/", {"rating": "1"})
    assert response["Location"] == f"/chat/{answer.conversation_id}/#m-{answer.pk}"


@pytest.mark.parametrize(
    "typed",
    [{"rating": "2"}, {"rating": "x"}, {"rating": "1", "reason": "nonsense"}, {"rating": "1", "comment": "x" * 1001}],
)
def test_nonsense_is_refused(owner: Client, answer: Message, typed: dict[str, str]) -> None:
    assert owner.post(f"/chat/messages/{answer.pk}/feedback/", typed, headers=HX).status_code == 400
    assert given() == []


def test_only_ones_own_settled_answers(
    alice: User, bob: User, conversation: Conversation, answer: Message, worker: StepWorker
) -> None:
    with pytest.raises(Http404):
        feedback.give(bob, answer, 1)
    assert answer.parent
    with pytest.raises(errors.NotAnAnswer):
        feedback.give(alice, answer.parent, 1)
    running = send.send_message(alice, conversation, "more").answer
    with pytest.raises(errors.AnswerRunning):
        feedback.give(alice, running, 1)
    assert given() == []


def test_opinions_are_counted_by_model(alice: User, answer: Message) -> None:
    def counted() -> float:
        found = re.search(rf'smolfleet_feedback_total{{model="{MODEL}",rating="bad"}} (\S+)', metrics.text().decode())
        return float(found[1]) if found else 0.0

    before = counted()
    feedback.give(alice, answer, -1)
    assert counted() == before + 1


def test_review_lists_conversations_with_opinions_and_shows_them_only_in_the_transcript(
    alice: User, answer: Message, site: Callable[..., None]
) -> None:
    feedback.give(alice, answer, -1, reason="wrong", comment="xyzzy-plugh")
    Conversation.objects.create(owner=alice)
    rita = User.objects.create_user("rita", is_staff=True)
    rita.user_permissions.add(Permission.objects.get(codename="view_transcript"))
    client = Client()
    client.force_login(rita)

    def listed(query: str) -> list[str]:
        return re.findall(r"<td><a[^>]*>([0-9a-f-]{36})</a>", client.get(f"/review/?{query}").content.decode())

    assert listed("feedback=bad&owner=") == [str(answer.conversation_id)]
    assert listed("feedback=any&owner=") == [str(answer.conversation_id)]
    assert listed("feedback=good&owner=") == []
    assert len(listed("owner=alice")) == 2
    assert listed("feedback=&owner=") == []
    assert "xyzzy" not in client.get("/review/?feedback=bad&owner=").content.decode()
    address = f"/review/{answer.conversation_id}/"
    assert "xyzzy" not in client.get(address).content.decode()
    assert "xyzzy-plugh" in client.post(address, {"reason": "Report 4711"}).content.decode()


def test_admin_shows_the_frame_and_never_the_comment(sam: User, alice: User, answer: Message) -> None:
    row = feedback.give(alice, answer, -1, comment="xyzzy-plugh")
    client = Client()
    client.force_login(sam)
    for path in ("", f"{row.pk}/change/"):
        page: Any = client.get(f"/admin/chat/feedback/{path}")
        assert page.status_code == 200
        assert "xyzzy" not in page.content.decode()
