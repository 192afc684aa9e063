"""Verbs on a conversation's tree once it has grown: show a branch, change an answer's text, take away, begin anew.

Each holds its conversation's row, as sends do, so that none sees half of another's work. What a model wrote stays on
record as its generation's hash; a text that a person changed has `edited_at`. Synchronous; called by `message`.
"""

from __future__ import annotations

from uuid import UUID

import structlog
from django.conf import settings
from django.db import transaction
from django.http import Http404
from django.utils import timezone
from django.utils.translation import gettext as _

from chatsite.accounts.models import User
from chatsite.accounts.time_zones import zone_of
from chatsite.chat import errors
from chatsite.chat.actions import answer as actions_answer
from chatsite.chat.actions import attachments
from chatsite.chat.generation import request
from chatsite.chat.models import TITLE_CHARS, Conversation, Generation, Message
from chatsite.chat.queries import access
from chatsite.chat.text import ELLIPSIS, clean_typed

log = structlog.get_logger(__name__)

COPIED = (
    "model",
    "system_prompt",
    "thinking",
    "tools",
    "thinking_budget",
    "temperature",
    "top_p",
    "max_tokens",
    "is_title_own",
)


def select(user: User, message: Message) -> Conversation:
    """Show the branch that `message` lies on, down to the newest message below it.

    Raises:
        Http404: the message is not this user's, or no longer there.
    """
    with transaction.atomic():
        conversation = access.locked_conversation_of(user, message.conversation_id)
        leaf_id = access.newest_leaf_of(conversation, message.pk)
        if leaf_id is None:
            raise Http404
        conversation.leaf_id = leaf_id
        conversation.save(update_fields=["leaf"])
    return conversation


def rewrite(user: User, answer: Message, text: str) -> Message:
    """Change the text of an answer in place; what follows it stays, and prompts hold the new text from now on.

    The same text changes nothing. An answer may stay as long as it is, also beyond what a message may have.

    Raises:
        NotAnAnswer: it is a question; `actions.edit` asks differently.
        AnswerRunning: it is still being written.
        EmptyMessage, MessageTooLong: of the text.
        Http404: the message is not this user's, or no longer there.
    """
    text = clean_typed(text).strip("\n")
    if not text.strip():
        raise errors.EmptyMessage
    with transaction.atomic():
        access.locked_conversation_of(user, answer.conversation_id)
        answer = access.message_of(user, answer.pk)
        if answer.role != Message.Role.ASSISTANT:
            raise errors.NotAnAnswer
        if Generation.objects.filter(message=answer, status=Generation.Status.ACTIVE).exists():
            raise errors.AnswerRunning
        max_chars = max(settings.SMOLFLEET.max_message_chars, len(answer.content))
        if len(text) > max_chars:
            raise errors.MessageTooLong(num_chars=len(text), max_chars=max_chars)
        if text != clean_typed(answer.content).strip("\n"):
            answer.content, answer.edited_at = text, timezone.now()
            answer.save(update_fields=["content", "edited_at"])
            log.info("answer edited", message_id=str(answer.pk))
    return answer


def num_below(user: User, message: Message) -> int:
    """How many messages go with `message` when it is deleted, itself counted. Raises Http404."""
    conversation = access.conversation_of(user, message.conversation_id)
    return len(access.subtree_of(conversation, message.pk))


def remove(user: User, message: Message, *, num_expected: int | None = None) -> Conversation:
    """Delete `message` and all that follows it, on every branch. What is shown then is the version beside it, else
    what stands above it. Redis forgets the deleted answers: see apps.py.

    Raises:
        AnswerRunning: one of them is still being written.
        BranchGrew: they are more than `num_expected`.
        Http404: the message is not this user's, or no longer there.
    """
    with transaction.atomic():
        conversation = access.locked_conversation_of(user, message.conversation_id)
        message = access.message_of(user, message.pk)
        doomed = access.subtree_of(conversation, message.pk)
        if access.unfinished_generations_of(conversation).filter(message__in=list(doomed)).exists():
            raise errors.AnswerRunning
        if num_expected is not None and len(doomed) > num_expected:
            raise errors.BranchGrew(num_messages=len(doomed))
        if conversation.leaf_id in doomed:
            conversation.leaf_id = _leaf_without(conversation, message)
            conversation.save(update_fields=["leaf"])
        Message.objects.filter(pk__in=list(doomed)).delete()  # all at once: a deep tree must not recurse
    log.info("branch deleted", conversation_id=str(conversation.pk), num_messages=len(doomed))
    return conversation


def fork(user: User, message: Message) -> Conversation:
    """A new conversation that holds the path up to `message`, with the settings, tags and files of the old one.

    Answers that failed or are empty stay behind: they were no part of what the model read. So do the numbers of how
    each answer came about: they are counted once.

    Raises:
        AnswerRunning: an answer on that path is still being written.
        SendRefused: too many requests.
        Http404: the message is not this user's, or no longer there.
    """
    message = access.message_of(user, message.pk)
    actions_answer.take_request(user)
    old = message.conversation
    path = access.path_of(old, message.pk)
    if any(getattr(found, "generation", None) and found.generation.is_active for found in path):
        raise errors.AnswerRunning
    kept = [found for found in path if request.is_for_the_model(found)]
    with transaction.atomic():
        fresh = Conversation.objects.create(
            owner=user,
            title=_title_of_fork(old.title),
            prompt_date=timezone.localdate(timezone=zone_of(user)),
            **{name: getattr(old, name) for name in COPIED},
        )
        fresh.tags.set(old.tags.all())
        copies: list[Message] = []
        for found in kept:
            parent = copies[-1] if copies else None
            words = {name: getattr(found, name) for name in ("role", "content", "reasoning", "calls", "edited_at")}
            copies.append(Message(conversation=fresh, parent=parent, **words))
        Message.objects.bulk_create(copies)
        for found, copy in zip(kept, copies, strict=True):
            if found.attachments.all():
                attachments.tie(attachments.of_message(found), copy)
        fresh.leaf = copies[-1] if copies else None
        fresh.save(update_fields=["leaf"])
    log.info("forked", conversation_id=str(old.pk), fork_id=str(fresh.pk), num_messages=len(copies))
    return fresh


def _leaf_without(conversation: Conversation, message: Message) -> UUID | None:
    """The end of the path to show once `message` is gone: of the version before it, else after it, else its parent."""
    beside = conversation.messages.filter(parent_id=message.parent_id).exclude(pk=message.pk).order_by("pk")
    nearest = beside.filter(pk__lt=message.pk).last() or beside.first()
    return access.newest_leaf_of(conversation, nearest.pk) if nearest else message.parent_id


def _title_of_fork(title: str) -> str:
    frame = _("Fork of %(title)s")
    if not title or title.startswith(frame % {"title": ""}):
        return title
    named = frame % {"title": title}
    return named if len(named) <= TITLE_CHARS else named[: TITLE_CHARS - 1].rstrip() + ELLIPSIS
