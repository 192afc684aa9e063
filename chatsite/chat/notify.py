"""What changed in somebody's list of conversations, said to all their windows once it is committed.

A hint names the conversation and the change; the window then asks for its list. So a lost hint costs time alone, and
nothing of a conversation's content travels here. Called by the verbs and by `recording`; carried by `consumers`.
"""

from __future__ import annotations

import functools
from enum import StrEnum
from uuid import UUID

from django.db import transaction

from chatsite.chat.generation import request
from chatsite.chat.models import Conversation


class Change(StrEnum):
    BEGAN = "began"  # an answer is being written
    ENDED = "ended"
    SEEN = "seen"  # ... or marked as not
    NAMED = "named"
    MOVED = "moved"  # pinned, archived, tagged, or back
    GONE = "gone"


def tell(user_id: UUID, conversation_id: UUID, change: Change) -> None:
    """Say it once the transaction is committed; at once outside of one."""
    transaction.on_commit(functools.partial(request.tell_windows, user_id, conversation_id, change.value), robust=True)


def answer_ended(generation_id: UUID) -> None:
    """An answer of the chat has ended: its conversation is unread until somebody looks. Nothing for one without."""
    rows = Conversation.objects.filter(messages__generation__pk=generation_id)
    for pk, owner_id in rows.values_list("pk", "owner_id"):
        Conversation.objects.filter(pk=pk).update(is_unread=True)
        tell(owner_id, pk, Change.ENDED)
