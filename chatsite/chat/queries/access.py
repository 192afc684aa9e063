"""The only way to fetch what belongs to a user. "Not yours", "not there" and "not an id" are the same 404.

Every read of a conversation, message or generation on behalf of somebody begins here: an id alone never gives access.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar
from uuid import UUID

from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.models import AnonymousUser
from django.db import connection
from django.db.models import Model, Prefetch, Q, QuerySet
from django.http import Http404
from django.utils.crypto import constant_time_compare
from django.utils.module_loading import import_string

from chatsite.accounts.models import User
from chatsite.chat.models import Attachment, Conversation, Generation, Message
from chatsite.rules import second_factor

M = TypeVar("M", bound=Model)

_PATH = """
WITH RECURSIVE path (id, parent_id, height) AS (
    SELECT id, parent_id, 0 FROM chat_message WHERE id = %(leaf)s AND conversation_id = %(conversation)s
    UNION ALL
    SELECT m.id, m.parent_id, path.height + 1 FROM chat_message m JOIN path ON m.id = path.parent_id
)
SELECT id FROM path ORDER BY height DESC
"""
_SUBTREE = """
WITH RECURSIVE subtree (id, parent_id) AS (
    SELECT id, parent_id FROM chat_message WHERE id = %(top)s AND conversation_id = %(conversation)s
    UNION ALL
    SELECT m.id, m.parent_id FROM chat_message m JOIN subtree ON m.parent_id = subtree.id
)
SELECT id, parent_id FROM subtree
"""


def conversations_of(user: User) -> QuerySet[Conversation]:
    """The user's conversations, newest message first."""
    return Conversation.objects.filter(owner=user)


def conversation_of(user: User, conversation_id: UUID | str) -> Conversation:
    """Raises Http404 unless the user owns it."""
    return only(conversations_of(user), conversation_id)


def message_of(user: User, message_id: UUID | str) -> Message:
    """The message with its conversation. Raises Http404 unless the user owns it."""
    return only(Message.objects.filter(conversation__owner=user).select_related("conversation"), message_id)


def generation_of(user: User, generation_id: UUID | str) -> Generation:
    """The generation with its message, of the chat and the API alike. Raises Http404 unless the user owns it."""
    return only(Generation.objects.filter(user=user).select_related("message"), generation_id)


def active_generations_of(conversation: Conversation) -> QuerySet[Generation]:
    """Those still being written in a conversation that was fetched here."""
    return Generation.objects.filter(message__conversation=conversation, status=Generation.Status.ACTIVE)


def is_answering(conversation: Conversation) -> bool:
    """Whether an answer is being written in it, or the tools it called are at work and it will go on."""
    return active_generations_of(conversation).exists() or is_calling(conversation)


def is_calling(conversation: Conversation) -> bool:
    """Whether tools are at work for an answer of it."""
    return Message.objects.filter(conversation=conversation, calling_since__isnull=False).exists()


def unfinished_generations_of(conversation: Conversation) -> QuerySet[Generation]:
    """Those that `stop` can end: being written, or waiting for the tools they called."""
    unfinished = Q(status=Generation.Status.ACTIVE) | Q(message__calling_since__isnull=False)
    return Generation.objects.filter(unfinished, message__conversation=conversation)


def look_again(conversation: Conversation) -> None:
    """Read afresh which path is shown: an answer may have been begun since. Deleted meanwhile: none."""
    leaves = Conversation.objects.filter(pk=conversation.pk).values_list("leaf_id", flat=True)
    conversation.leaf_id = leaves.first()


def path_of(conversation: Conversation, leaf_id: UUID | None = None) -> list[Message]:
    """Messages from the root to `leaf_id` (the conversation's own leaf when None), as `messages_of` gives them."""
    return messages_of(path_ids_of(conversation, leaf_id))


def path_ids_of(conversation: Conversation, leaf_id: UUID | None = None) -> list[UUID]:
    """The same as ids alone: what is enough to find one's place among thousands."""
    leaf_id = leaf_id or conversation.leaf_id
    if leaf_id is None:
        return []
    with connection.cursor() as cursor:
        cursor.execute(_PATH, {"leaf": leaf_id, "conversation": conversation.pk})
        return [row[0] for row in cursor.fetchall()]


def messages_of(ids: Sequence[UUID]) -> list[Message]:
    """The messages of a path's `ids`, in that order.

    Each has its generation, its feedback and its files, these without their text.
    """
    files = Prefetch("attachments", Attachment.objects.defer("text").order_by("pk"))
    rows = Message.objects.filter(pk__in=ids).select_related("generation", "feedback").prefetch_related(files)
    messages = rows.in_bulk()
    return [messages[pk] for pk in ids if pk in messages]  # the lower end may have been deleted meanwhile


def subtree_of(conversation: Conversation, message_id: UUID) -> dict[UUID, UUID | None]:
    """A message and all below it, each with its parent; empty when the conversation has no such message."""
    with connection.cursor() as cursor:
        cursor.execute(_SUBTREE, {"top": message_id, "conversation": conversation.pk})
        return dict(cursor.fetchall())


def newest_leaf_of(conversation: Conversation, message_id: UUID) -> UUID | None:
    """Where the branch that `message_id` lies on was last gone on with; None when there is no such message."""
    subtree = subtree_of(conversation, message_id)
    return max(subtree.keys() - subtree.values(), default=None)  # ids sort by creation


def locked_conversation_of(user: User, conversation_id: UUID) -> Conversation:
    """The conversation as it is now, its row held until commit: sends wait for it. Raises Http404."""
    return only(conversations_of(user).select_for_update(no_key=True, of=("self",)), conversation_id)


def may_enter(visitor: User | AnonymousUser) -> bool:
    """Whether somebody is signed in and active, and has the second factor if the rules ask them for one.

    For consumers and for pages that Django's middleware does not guard. One query for most.
    """
    return visitor.is_authenticated and visitor.is_active and not second_factor.is_missing(visitor)


def is_signed_in(session_key: str, user_id: UUID) -> bool:
    """Whether that session still stands, for that user, who has the same password and may still enter.

    For streams, which outlive the request that opened them. Only looks: Django's own `get_user` would give the session
    another key when the site's secret has changed, and no browser would hear of it.
    """
    session = import_string(f"{settings.SESSION_ENGINE}.SessionStore")(session_key)
    if (
        session.get(SESSION_KEY) != str(user_id)
        or session.get(BACKEND_SESSION_KEY) not in settings.AUTHENTICATION_BACKENDS
    ):
        return False
    user = User.objects.filter(pk=user_id).first()
    if user is None or not may_enter(user):
        return False
    proof = session.get(HASH_SESSION_KEY, "")
    valid = (user.get_session_auth_hash(), *user.get_session_auth_fallback_hash())
    return any(constant_time_compare(proof, one) for one in valid)


def only(rows: QuerySet[M], pk: UUID | str) -> M:
    try:
        found = rows.filter(pk=pk if isinstance(pk, UUID) else UUID(pk)).first()
    except (ValueError, AttributeError, TypeError):
        found = None
    if found is None:
        raise Http404("There is nothing here.")
    return found
