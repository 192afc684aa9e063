"""Another text: a question asked differently beside the old one, an answer changed in its place."""

# ruff: noqa: F811  (fixtures are imported, then asked for by their names)

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from django.test import Client

from chatsite.accounts.models import User
from chatsite.chat.actions import answer as actions_answer
from chatsite.chat.actions import send, tree
from chatsite.chat.models import Attachment, Conversation, Generation, Message
from chatsite.chat.streams import follow
from chatsite.chat.text import sha256_of
from inference.messages.generation import FinishReason
from tests.web.chat_worker import StepWorker
from tests.web.test_actions import answer
from tests.web.tree import asked, path_of  # noqa: F401  (fixtures)

HX = {"HX-Request": "true"}


def test_an_edited_question_branches_once_per_press_and_takes_its_files_along(
    owner: Client,
    alice: User,
    conversation: Conversation,
    asked: Callable[..., actions_answer.Sent],
    worker: StepWorker,
) -> None:
    sent = asked("why")
    Attachment.objects.create(
        owner=alice, message=sent.message, name="a.txt", media_type="text/plain", text="A", num_bytes=1
    )
    form = owner.get(f"/chat/messages/{sent.message.pk}/edit/", headers=HX).content.decode()
    assert "<textarea" in form
    key = re.search(r'name="key" value="([^"]+)"', form)
    assert key
    for _press in range(2):
        done = owner.post(f"/chat/messages/{sent.message.pk}/edit/", {"text": "why not", "key": key[1]}, headers=HX)
        assert done.status_code == 200
    answer(worker, "because")
    assert path_of(conversation) == ["why not", "because"]
    assert conversation.messages.filter(role="user").count() == 2
    assert conversation.messages.get(content="why not").attachments.get().name == "a.txt"


def test_an_edited_answer_stays_where_it_is_and_is_what_the_model_reads(
    owner: Client, alice: User, conversation: Conversation, asked: Callable[..., actions_answer.Sent]
) -> None:
    sent = asked("why", "Because.")
    asked("and then?")
    before = Generation.objects.get(message=sent.answer).content_sha256
    done = owner.post(f"/chat/messages/{sent.answer.pk}/edit/", {"text": "Be\r\n**cause**"}, headers=HX)
    assert b"edited" in done.content
    assert b"<strong>cause</strong>" in done.content
    assert path_of(conversation)[:2] == ["why", "Be\n**cause**"]
    assert len(path_of(conversation)) == 4
    assert Generation.objects.get(message=sent.answer).content_sha256 == before, "what the model wrote stays on record"
    request = send.send_message(alice, conversation, "so?").generation.request
    assert "Be\\n**cause**" in request


def test_saving_the_same_text_marks_nothing(owner: Client, asked: Callable[..., actions_answer.Sent]) -> None:
    sent = asked("why", "\nOne\n\ntwo\n")
    owner.post(f"/chat/messages/{sent.answer.pk}/edit/", {"text": "One\r\n\r\ntwo"})
    row = Message.objects.get(pk=sent.answer.pk)
    assert (row.content, row.edited_at) == ("\nOne\n\ntwo\n", None)


def test_an_edited_answer_that_had_failed_is_read_by_the_model(
    alice: User, conversation: Conversation, asked: Callable[..., actions_answer.Sent]
) -> None:
    sent = asked("why", "Bec", reason=FinishReason.ERROR)
    tree.rewrite(alice, sent.answer, "Because.")
    request = send.send_message(alice, conversation, "so?").generation.request
    assert "Because." in request


@pytest.mark.parametrize(("text", "status"), [(" \n", 400), ("x" * 100_001, 413)])
def test_a_text_that_cannot_be_is_refused_and_comes_back_without_a_script(
    text: str, status: int, owner: Client, asked: Callable[..., actions_answer.Sent]
) -> None:
    sent = asked("why")
    for message in (sent.message, sent.answer):
        assert owner.post(f"/chat/messages/{message.pk}/edit/", {"text": text}, headers=HX).status_code == status
        page = owner.post(f"/chat/messages/{message.pk}/edit/", {"text": text})
        assert page.status_code == status
        assert text.encode() in page.content
    assert Message.objects.count() == 2


def test_an_edit_of_what_is_being_written_is_refused(
    owner: Client, alice: User, conversation: Conversation, asked: Callable[..., actions_answer.Sent]
) -> None:
    first = asked("why")
    running = send.send_message(alice, conversation, "and?")
    for pk in (running.answer.pk, first.message.pk):
        assert owner.post(f"/chat/messages/{pk}/edit/", {"text": "other"}, headers=HX).status_code == 409
    assert owner.post(f"/chat/messages/{first.answer.pk}/edit/", {"text": "other"}, headers=HX).status_code == 200


def test_a_stream_of_an_edited_answer_tells_the_hash_of_the_text_it_tells(
    alice: User, asked: Callable[..., actions_answer.Sent]
) -> None:
    sent = asked("why", "Because.")
    tree.rewrite(alice, sent.answer, "Otherwise.")
    row = Generation.objects.select_related("message").get(message=sent.answer)
    told = follow._snapshot(row).data
    assert (told["content"], told["is_edited"]) == ("Otherwise.", True)
    assert told["content_sha256"] == sha256_of("Otherwise.")
