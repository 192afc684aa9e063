"""Opening somebody's conversation: the record is committed first, and without it nothing is shown.

Sync; called by the views. Reading without a record is not offered anywhere: this is the one way for staff.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import structlog
from django.db import transaction
from django.http import Http404

from chatsite.accounts.models import User
from chatsite.chat.models import Conversation, Message
from chatsite.chat.text import clean
from chatsite.review.models import REASON_CHARS, AccessEvent

log = structlog.get_logger(__name__)

PERMISSION = "review.view_transcript"
MIN_REASON_CHARS = 5  # a word; a lone dot is no reason


class ReasonMissing(Exception):
    """No usable reason was given; the sentence says what is asked for."""


@dataclass(frozen=True)
class Transcript:
    """A conversation as staff may read it: every message, oldest first.

    Answers have their generation and the opinion of them, questions their files.
    """

    event: AccessEvent
    conversation: Conversation
    messages: Sequence[Message]


def may_review(user: object) -> bool:
    """Whether `user` may open others' conversations at all: active staff with the permission."""
    return isinstance(user, User) and user.is_active and user.is_staff and user.has_perm(PERMISSION)


def conversation_for_review(actor: object, conversation_id: UUID) -> Conversation:
    """The conversation's frame (owner, dates; its text is not loaded).

    Raises:
        Http404: no such conversation, or `actor` may not review.
    """
    if not may_review(actor):
        raise Http404
    found = (
        Conversation.objects.filter(pk=conversation_id).select_related("owner").defer("title", "system_prompt").first()
    )
    if found is None:
        raise Http404
    return found


def open_transcript(actor: User, conversation_id: UUID, *, reason: str, ip: str | None) -> Transcript:
    """Record that `actor` opens the conversation, commit that, then read it.

    Raises:
        Http404: no such conversation, or `actor` may not review.
        ReasonMissing: nothing is recorded and nothing shown.
        DatabaseError: the record could not be written; nothing is shown.
    """
    frame = conversation_for_review(actor, conversation_id)
    reason = " ".join(clean(reason).split())
    if not MIN_REASON_CHARS <= len(reason) <= REASON_CHARS:
        raise ReasonMissing(f"Please give the reason in {MIN_REASON_CHARS} to {REASON_CHARS} characters.")
    with transaction.atomic(durable=True):  # durable: committed when the block ends, not with the request
        event = AccessEvent.objects.create(
            actor=actor,
            actor_name=actor.get_username(),
            subject=frame.owner,
            conversation=frame,
            conversation_key=str(frame.pk),
            reason=reason,
            ip=ip,
        )
    log.info("transcript opened", actor_id=str(actor.pk), conversation_id=str(frame.pk), access_id=str(event.pk))
    conversation = Conversation.objects.select_related("owner").filter(pk=frame.pk).first()
    if conversation is None:  # deleted since
        raise Http404
    messages = conversation.messages.select_related("generation", "feedback").prefetch_related("attachments")
    return Transcript(event, conversation, list(messages.order_by("id")))
