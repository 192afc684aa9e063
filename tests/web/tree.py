"""A conversation's tree for tests: questions with recorded answers, chains of settled messages, the shown path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from chatsite.accounts.models import User
from chatsite.chat.actions import answer as actions_answer
from chatsite.chat.actions import send
from chatsite.chat.models import Conversation, Message
from chatsite.chat.queries import access
from tests.web.chat_worker import StepWorker
from tests.web.test_actions import answer


@pytest.fixture
def asked(alice: User, conversation: Conversation, worker: StepWorker) -> Callable[..., actions_answer.Sent]:
    """A question with its recorded answer, at the end of the shown path."""

    def ask(question: str, *pieces: str, **how: Any) -> actions_answer.Sent:
        conversation.refresh_from_db()
        sent = send.send_message(alice, conversation, question)
        answer(worker, *(pieces or (f"answer to {question}",)), **how)
        return sent

    return ask


def path_of(conversation: Conversation) -> list[str]:
    conversation.refresh_from_db()
    return [message.content for message in access.path_of(conversation)]


def grown(conversation: Conversation, depth: int, parent: Message | None = None) -> list[Message]:
    """A chain of settled messages, put straight into the table."""
    rows: list[Message] = []
    for index in range(depth):
        role = Message.Role.USER if index % 2 == 0 else Message.Role.ASSISTANT
        above = rows[-1] if rows else parent
        rows.append(Message(conversation=conversation, parent=above, role=role, content=f"message {index}"))
    Message.objects.bulk_create(rows)
    conversation.leaf = rows[-1]
    conversation.save()
    return rows
