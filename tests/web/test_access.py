"""Ids give no access: a stranger, staff and a malformed id all find nothing."""

from __future__ import annotations

import uuid

import pytest
from django.http import Http404

from chatsite.accounts.models import User
from chatsite.chat.actions import send
from chatsite.chat.models import Conversation, Message
from chatsite.chat.queries import access

READERS = ["conversation_of", "message_of", "generation_of"]


@pytest.fixture
def ids(alice: User, conversation: Conversation) -> dict[str, uuid.UUID]:
    sent = send.send_message(alice, conversation, "hello")
    return {"conversation_of": conversation.pk, "message_of": sent.message.pk, "generation_of": sent.generation.pk}


@pytest.mark.parametrize("reader", READERS)
def test_owner_finds_it_by_id_and_by_text(reader: str, alice: User, ids: dict[str, uuid.UUID]) -> None:
    assert getattr(access, reader)(alice, ids[reader]).pk == ids[reader]
    assert getattr(access, reader)(alice, str(ids[reader])).pk == ids[reader]


@pytest.mark.parametrize("reader", READERS)
def test_strangers_and_staff_find_nothing(reader: str, bob: User, sam: User, ids: dict[str, uuid.UUID]) -> None:
    for user in (bob, sam):
        with pytest.raises(Http404):
            getattr(access, reader)(user, ids[reader])


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("bad", ["", "x", "1", "\x00", "' OR 1=1", "26a6d7bb-6ea1-491a-abfc-578275c71002"])
def test_bad_and_unknown_ids_find_nothing(reader: str, bad: str, alice: User) -> None:
    with pytest.raises(Http404):
        getattr(access, reader)(alice, bad)


def test_path_runs_from_root_to_leaf_of_the_branch_asked_for(alice: User, conversation: Conversation) -> None:
    def add(parent: Message | None, role: str) -> Message:
        return Message.objects.create(conversation=conversation, parent=parent, role=role, content=role)

    first = add(None, "user")
    left, right = add(first, "assistant"), add(first, "assistant")
    below = add(left, "user")
    assert access.path_of(conversation) == []
    conversation.leaf = below
    assert access.path_of(conversation) == [first, left, below]
    assert access.path_of(conversation, right.pk) == [first, right]


def test_path_never_leaves_its_conversation(alice: User, bob: User, conversation: Conversation) -> None:
    theirs = send.start_conversation(bob)
    sent = send.send_message(bob, theirs, "secret")
    assert access.path_of(conversation, sent.answer.pk) == []
