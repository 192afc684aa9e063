"""Who may open whose conversation, by the site's review policy; and opening it: the record is committed first.

The one place where the policy is enforced, and the one way to read others: without a record nothing is shown, on no
page and in no export, superusers included. The policy is asked afresh each time, so that a change counts at once. Sync;
called by the views, `reports` and the tags of templates that link here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import structlog
from django.db import transaction
from django.db.models import QuerySet
from django.http import Http404

from chatsite.accounts.models import User
from chatsite.audit.log import record
from chatsite.audit.models import Action
from chatsite.chat.models import Conversation, Feedback, Message
from chatsite.chat.queries import access
from chatsite.chat.text import clean
from chatsite.review.models import REASON_CHARS, AccessEvent
from chatsite.rules import effective
from chatsite.rules.models import SiteRules

log = structlog.get_logger(__name__)

Policy = SiteRules.Review
PERMISSION = "review.view_transcript"
MIN_REASON_CHARS = 5  # a word; a lone dot is no reason


class ReasonMissing(Exception):
    """No usable reason was given; the sentence says what is asked for."""


@dataclass(frozen=True)
class Transcript:
    """A conversation as reviewers may read it, its messages oldest first.

    Whole: every message. Else the reported answers and what led to each, without the title, which quotes what may lie
    elsewhere. Answers have their generation and the opinion of them, questions their files.
    """

    event: AccessEvent
    conversation: Conversation
    messages: Sequence[Message]
    is_whole: bool


def policy() -> Policy:
    """The one in force on this site."""
    return Policy(effective.site_rules().review_policy)


def policy_for(user: object) -> Policy:
    """What `user` may open of others: nothing, unless they are active and have the permission."""
    is_reviewer = isinstance(user, User) and user.is_active and user.has_perm(PERMISSION)
    return policy() if is_reviewer else Policy.OFF


def may_review(user: object) -> bool:
    """Whether the pages of review are there for `user`."""
    return policy_for(user) is not Policy.OFF


def standing_reports() -> QuerySet[Feedback]:
    """The answers whose owners show them to reviewers, newest report first."""
    return Feedback.objects.filter(is_reported=True).order_by("-created_at", "-pk")


def readable_by(actor: object) -> QuerySet[Conversation]:
    """The conversations that `actor` may find and open. Each list, search, count and link begins here."""
    return _readable_under(policy_for(actor))


def _readable_under(rule: Policy) -> QuerySet[Conversation]:
    match rule:
        case Policy.REASON:
            return Conversation.objects.all()
        case Policy.REPORTED:
            return Conversation.objects.filter(pk__in=standing_reports().values("message__conversation"))
        case _:
            return Conversation.objects.none()


def allowed(actor: object, conversation_id: UUID) -> bool:
    """Whether `actor` may open that conversation just now."""
    return readable_by(actor).filter(pk=conversation_id).exists()


def conversation_for_review(actor: object, conversation_id: UUID) -> Conversation:
    """The conversation's frame (owner, dates; its text is not loaded).

    Raises:
        Http404: no such conversation, or `actor` may not open it.
    """
    rows = readable_by(actor).filter(pk=conversation_id)
    found = rows.select_related("owner").defer("title", "system_prompt").first()
    if found is None:
        raise Http404
    return found


def open_transcript(actor: User, conversation_id: UUID, *, reason: str, ip: str | None) -> Transcript:
    """Record that `actor` opens the conversation, commit that, then read it.

    Raises:
        Http404: no such conversation, or `actor` may not open it.
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
        detail = {"reason": reason}
        record(Action.TRANSCRIPT_OPENED, actor=actor, subject=frame.owner, target=str(frame.pk), detail=detail, ip=ip)
    log.info("transcript opened", actor_id=str(actor.pk), conversation_id=str(frame.pk), access_id=str(event.pk))
    return _read(actor, event, frame.pk)


def _read(actor: User, event: AccessEvent, conversation_id: UUID) -> Transcript:
    rule = policy_for(actor)
    is_whole = rule is Policy.REASON
    rows = _readable_under(rule).filter(pk=conversation_id).select_related("owner")
    conversation = (rows if is_whole else rows.defer("title")).first()
    if conversation is None:  # deleted since, or its report was taken back
        raise Http404
    messages = conversation.messages.select_related("generation", "feedback__outcome__handled_by")
    if not is_whole:
        conversation.title = ""
        messages = messages.filter(pk__in=_reported_paths(conversation))
    return Transcript(event, conversation, list(messages.prefetch_related("attachments").order_by("id")), is_whole)


def _reported_paths(conversation: Conversation) -> set[UUID]:
    """The messages from the beginning to each reported answer: what its owner agreed to show."""
    answers = standing_reports().filter(message__conversation=conversation).values_list("message_id", flat=True)
    return {pk for answer in answers for pk in access.path_ids_of(conversation, answer)}
