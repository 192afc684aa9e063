"""Deleting a part of the tree: what goes with it, what is shown then, and what may not be deleted."""

# ruff: noqa: F811  (fixtures are imported, then asked for by their names)

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest
import redis as redis_py
from django.http import Http404
from django.test import Client

from chatsite.accounts.models import User
from chatsite.chat import errors
from chatsite.chat.actions import answer as actions_answer
from chatsite.chat.actions import retry, send, tree
from chatsite.chat.models import Conversation, Generation, Message
from inference.coordination import redis_keys
from tests.web.chat_worker import StepWorker
from tests.web.test_actions import answer, together
from tests.web.tree import asked, grown, path_of  # noqa: F401  (fixtures)

HX = {"HX-Request": "true"}


def test_deleting_takes_what_follows_on_every_branch_and_redis_forgets_it(
    owner: Client,
    alice: User,
    conversation: Conversation,
    asked: Callable[..., actions_answer.Sent],
    worker: StepWorker,
    redis: redis_py.Redis,
) -> None:
    kept, gone = asked("kept"), asked("gone")
    asked("below")
    retry.retry(alice, gone.answer)
    answer(worker, "another")
    doomed = list(Generation.objects.exclude(message=kept.answer).values_list("pk", flat=True))
    assert all(redis.exists(redis_keys.log(pk)) for pk in doomed)
    panel = owner.get(f"/chat/messages/{gone.message.pk}/remove/", headers=HX).content.decode()
    assert "5 messages" in panel
    done = owner.post(f"/chat/messages/{gone.message.pk}/remove/", {"number": "5"}, headers=HX)
    assert done.status_code == 200
    assert path_of(conversation) == ["kept", "answer to kept"]
    assert Message.objects.count() == 2
    assert not any(redis.exists(redis_keys.log(pk)) for pk in doomed)


def test_after_deleting_a_version_the_one_beside_it_is_shown(
    alice: User, conversation: Conversation, asked: Callable[..., actions_answer.Sent], worker: StepWorker
) -> None:
    sent = asked("why", "one")
    for text in ("two", "three"):
        newest = retry.retry(alice, sent.answer)
        answer(worker, text)
    two = Message.objects.get(content="two")
    tree.select(alice, two)
    tree.remove(alice, two)
    assert path_of(conversation) == ["why", "one"]
    tree.remove(alice, sent.answer)
    assert path_of(conversation) == ["why", "three"]
    tree.remove(alice, newest.answer)
    assert path_of(conversation) == ["why"]
    tree.remove(alice, sent.message)
    assert path_of(conversation) == []


def test_deleting_elsewhere_leaves_what_is_shown(
    alice: User, conversation: Conversation, asked: Callable[..., actions_answer.Sent], worker: StepWorker
) -> None:
    sent = asked("why", "one")
    retry.retry(alice, sent.answer)
    answer(worker, "two")
    tree.remove(alice, sent.answer)
    assert path_of(conversation) == ["why", "two"]


def test_nothing_is_deleted_above_an_answer_that_is_being_written(
    owner: Client,
    alice: User,
    conversation: Conversation,
    asked: Callable[..., actions_answer.Sent],
    worker: StepWorker,
) -> None:
    first = asked("why")
    send.send_message(alice, conversation, "and?")
    refused = owner.post(f"/chat/messages/{first.message.pk}/remove/", headers=HX)
    assert (refused.status_code, refused["HX-Retarget"]) == (409, "#refusal")
    assert Message.objects.count() == 4
    answer(worker, "so")
    owner.post(f"/chat/messages/{first.message.pk}/remove/")
    assert Message.objects.count() == 0


def test_more_than_was_said_is_not_deleted(
    owner: Client, conversation: Conversation, asked: Callable[..., actions_answer.Sent]
) -> None:
    first = asked("why")
    asked("and?")
    refused = owner.post(f"/chat/messages/{first.message.pk}/remove/", {"number": "2"}, headers=HX)
    assert refused.status_code == 409
    assert b"4 messages" in refused.content
    assert Message.objects.count() == 4


def test_a_deep_tree_goes_as_one(alice: User, conversation: Conversation) -> None:
    rows = grown(conversation, 1_200)
    assert tree.num_below(alice, rows[1]) == 1_199
    tree.remove(alice, rows[1])
    assert path_of(conversation) == ["message 0"]
    assert conversation.messages.count() == 1


def test_sending_and_deleting_at_once_leave_a_whole_tree(
    alice: User, conversation: Conversation, asked: Callable[..., actions_answer.Sent]
) -> None:
    asked("kept")
    sent = asked("why")
    calls = [
        lambda: tree.remove(alice, sent.message),
        lambda: send.send_message(alice, Conversation.objects.get(pk=conversation.pk), "and?"),
        lambda: retry.retry(alice, sent.answer),
        lambda: send.edit(alice, sent.message, "other"),
    ]
    results = together(*calls)
    for result in results:
        assert isinstance(result, (Conversation, actions_answer.Sent, errors.AnswerRunning, Http404)), result
    assert sum(isinstance(result, actions_answer.Sent) for result in results) == 1
    assert path_of(conversation)[:2] == ["kept", "answer to kept"]
    assert Generation.objects.get(status="active").message.pk == conversation.leaf_id  # type: ignore[union-attr]


def test_a_press_of_send_repeated_after_its_answer_was_deleted_is_refused(
    alice: User, conversation: Conversation, worker: StepWorker
) -> None:
    key = uuid.uuid4()
    sent = send.send_message(alice, conversation, "why", idempotency_key=key)
    answer(worker, "so")
    tree.remove(alice, sent.answer)
    with pytest.raises(errors.AnswerGone):
        send.send_message(alice, conversation, "why", idempotency_key=key)
    assert conversation.messages.count() == 1
