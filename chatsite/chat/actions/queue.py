"""The queue of a conversation: messages typed while an answer is being written, sent one by one as answers are done.

A press of Send is either a message or an entry here, never both: entries are made and sent under the lock of their
conversation. After an answer that was stopped or failed the queue waits for a person, and so does an entry that was
refused, until what refused it has passed. The site worker moves it on after each recorded answer; the sweeper does so
too, because a task can be lost. Called by views (sync) and by `tasks`.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

import structlog
from django.db import transaction
from django.db.models import Count, Exists, OuterRef, Q
from django.http import Http404
from django.utils import timezone
from django.utils.translation import gettext as _

from chatsite.accounts.models import User
from chatsite.chat import errors
from chatsite.chat.actions import answer, attachments, send, tool_calls
from chatsite.chat.models import Conversation, Generation, Message, QueuedMessage
from chatsite.chat.queries import access

log = structlog.get_logger(__name__)

MAX_QUEUED = 10  # of one conversation
MAX_SENDS = 20  # of one `advance`; each repeat means that somebody changed the queue at that moment
MAX_DUE_ROWS = 100
PASSING_SECONDS = {"too_many_active": 10, "site_busy": 30}  # refusals that pass by themselves are tried again after
HOLDING = (Generation.Status.STOPPED, Generation.Status.FAILED)


@dataclass(frozen=True)
class Queue:
    """As it is shown. `why` says what it waits for, where that is a person; `is_moving`: it is about to be sent;
    `is_calling`: tools are at work, and the answer goes on by itself."""

    entries: Sequence[QueuedMessage]
    why: str = ""
    is_moving: bool = False
    is_calling: bool = False


def say(
    user: User,
    conversation: Conversation,
    text: str,
    *,
    idempotency_key: UUID | None = None,
    files: Iterable[UUID | str] = (),
) -> answer.Sent | QueuedMessage:
    """Send the message, or, while an answer is being written, let it wait its turn.

    Raises as `actions.send_message`, and:
        QueueFull: as many wait already as may.
    """
    files = list(files)
    conversation = access.conversation_of(user, conversation.pk)
    while True:
        if queued := _enqueue(user, conversation, text, idempotency_key, files):
            return queued
        try:
            return send.send_message(user, conversation, text, idempotency_key=idempotency_key, attachments=files)
        except (errors.AnswerRunning, errors.QueueMoved):
            if not access.is_answering(conversation) and not conversation.queued.exists():
                raise  # it has ended meanwhile: the sender may press again


def edit(user: User, conversation: Conversation, entry_id: UUID, text: str) -> QueuedMessage:
    """Change a waiting message; a refusal of its old words is forgotten.

    Raises:
        QueueMoved: it was sent or removed.
        SendRefused: the text is empty or too long.
        Http404: the conversation is not this user's, or no longer there.
    """
    text = send.checked_text(text)
    conversation = access.conversation_of(user, conversation.pk)
    send.check_fits(conversation, text, _entry(conversation, entry_id).attachments.order_by("pk"))
    with transaction.atomic():
        entry = _entry(access.locked_conversation_of(user, conversation.pk), entry_id)
        entry.content, entry.refusal, entry.try_again_at = text, "", None
        entry.save(update_fields=["content", "refusal", "try_again_at"])
    return entry


def remove(user: User, conversation: Conversation, entry_id: UUID) -> None:
    """Take a waiting message out; its files are drafts again. Raises QueueMoved, Http404."""
    with transaction.atomic():
        _entry(access.locked_conversation_of(user, conversation.pk), entry_id).delete()


def send_now(user: User, conversation: Conversation, entry_id: UUID) -> None:
    """Let this one go next, and at once: an answer that is being written is stopped for it.

    Raises QueueMoved, Http404.
    """
    with transaction.atomic():
        conversation = access.locked_conversation_of(user, conversation.pk)
        entry = _entry(conversation, entry_id)
        conversation.queued.filter(is_next=True).update(is_next=False)
        conversation.queued.filter(pk=entry.pk).update(is_next=True, refusal="", try_again_at=None)
        for generation in access.unfinished_generations_of(conversation):
            tool_calls.stop(user, generation)
    advance(conversation.pk)


def queue_of(conversation: Conversation) -> Queue:
    """The queue of a conversation that was fetched through `access`."""
    entries = list(conversation.queued.annotate(num_files=Count("attachments")))
    if access.is_calling(conversation):
        return Queue(entries, is_calling=True)
    if not entries or access.active_generations_of(conversation).exists():
        return Queue(entries)
    head, status = entries[0], _status_of_last(conversation)
    if head.refusal:
        return Queue(entries, why=head.refusal)
    if status in HOLDING and not head.is_next:
        was_stopped = status == Generation.Status.STOPPED
        return Queue(entries, why=_("The answer was stopped.") if was_stopped else _("The answer failed."))
    return Queue(entries, is_moving=True)


def advance(conversation_id: UUID) -> None:
    """Send what is next, if it is its turn. Repeats and overlaps are harmless."""
    for _attempt in range(MAX_SENDS):
        conversation = Conversation.objects.select_related("owner").filter(pk=conversation_id).first()
        head = _head(conversation) if conversation else None
        if conversation is None or head is None:
            return
        try:
            send.send_message(
                conversation.owner,
                conversation,
                head.content,
                idempotency_key=head.idempotency_key,
                attachments=head.attachments.order_by("pk").values_list("pk", flat=True),
                queued=head,
            )
        except errors.QueueMoved:
            continue
        except (errors.AnswerRunning, Http404):
            return  # its end comes back here; or the conversation was deleted
        except errors.SendRefused as refusal:
            _put_back(head, refusal)
        else:
            log.info("sent from the queue", conversation_id=str(conversation_id))
        return


def advance_after(generation_id: UUID) -> None:
    """`advance` for the conversation of an answer that has ended."""
    found = Message.objects.filter(generation=generation_id, conversation__queued__isnull=False)
    if conversation_id := found.values_list("conversation_id", flat=True).first():
        advance(conversation_id)


def due() -> list[UUID]:
    """Conversations whose queue should move, for the sweeper."""
    heads = QueuedMessage.objects.order_by("conversation_id", "-is_next", "pk").distinct("conversation_id")
    active = Generation.objects.filter(message__conversation=OuterRef("conversation"), status=Generation.Status.ACTIVE)
    held = Generation.objects.filter(message=OuterRef("conversation__leaf"), status__in=HOLDING)
    calling = Message.objects.filter(conversation=OuterRef("conversation"), calling_since__isnull=False)
    rows = QueuedMessage.objects.filter(
        ~Exists(active),
        ~Exists(calling),
        Q(is_next=True) | ~Exists(held),
        Q(refusal="") | Q(try_again_at__lte=timezone.now()),
        pk__in=heads.values("pk"),
        conversation__owner__is_active=True,
    )
    return list(rows.order_by("?").values_list("conversation_id", flat=True)[:MAX_DUE_ROWS])


def _enqueue(
    user: User, conversation: Conversation, text: str, key: UUID | None, files: list[UUID | str]
) -> QueuedMessage | None:
    """The entry this press makes or has made; None when the message need not wait."""
    if not conversation.queued.exists() and not access.is_answering(conversation):
        return None
    if key is not None and conversation.messages.filter(idempotency_key=key).exists():
        return None
    if key is not None and (entry := conversation.queued.filter(idempotency_key=key).first()):
        return entry
    text = send.checked_text(text)
    drafts = attachments.chosen(user, files)
    send.check_fits(conversation, text, drafts)  # may take time, so it happens before the lock
    with transaction.atomic():
        fresh = access.locked_conversation_of(user, conversation.pk)
        if key is not None and fresh.messages.filter(idempotency_key=key).exists():
            return None
        if key is not None and (entry := fresh.queued.filter(idempotency_key=key).first()):
            return entry
        if not (access.is_answering(fresh) or _head(fresh)):
            return None
        if fresh.queued.count() >= MAX_QUEUED:
            raise errors.QueueFull(max_queued=MAX_QUEUED)
        entry = QueuedMessage.objects.create(conversation=fresh, content=text, idempotency_key=key)
        entry.attachments.add(*drafts)
    return entry


def _head(conversation: Conversation) -> QueuedMessage | None:
    """What may be sent now."""
    head = conversation.queued.first()
    if head is None or not conversation.owner.is_active:
        return None
    if head.refusal and (head.try_again_at is None or head.try_again_at > timezone.now()):
        return None
    if access.is_answering(conversation):
        return None
    return head if head.is_next or _status_of_last(conversation) not in HOLDING else None


def _status_of_last(conversation: Conversation) -> str | None:
    """How the last answer of the shown path ended; None where no generation wrote it."""
    return Generation.objects.filter(message=conversation.leaf_id).values_list("status", flat=True).first()


def _put_back(entry: QueuedMessage, refusal: errors.SendRefused) -> None:
    seconds = refusal.retry_after_seconds or PASSING_SECONDS.get(refusal.code)
    again_at = timezone.now() + datetime.timedelta(seconds=seconds) if seconds else None
    QueuedMessage.objects.filter(pk=entry.pk).update(refusal=refusal.kept_message, try_again_at=again_at)
    log.info("refused from the queue", conversation_id=str(entry.conversation_id), code=refusal.code)


def _entry(conversation: Conversation, entry_id: UUID) -> QueuedMessage:
    if entry := conversation.queued.filter(pk=entry_id).first():
        return entry
    raise errors.QueueMoved
