"""Files on their way to a message: uploaded, counted, taken back, sent, and swept away when nobody sends them.

A row without a message is a draft of its owner's, shown above the box of the conversation it was dropped on. `actions`
ties drafts to the message that takes them along. Where the encoding of a file was only guessed, its bytes stay with the
draft, so that they can be read in another. Synchronous; called by the views, `actions` and `tasks`.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from uuid import UUID

import structlog
from django.conf import settings
from django.utils import timezone
from django.utils.translation import gettext as _

from chatsite.accounts.models import User, new_id
from chatsite.chat.errors import ModelUnknown
from chatsite.chat.files import extract
from chatsite.chat.files.extract import FileRefused
from chatsite.chat.generation import model_choice, request
from chatsite.chat.models import Attachment, Conversation, Message
from chatsite.chat.queries import access

log = structlog.get_logger(__name__)

DRAFT_HOURS = 24
MAX_DRAFTS = 100  # of one person, in all conversations together


def add(user: User, conversation: Conversation | None, name: str, data: bytes) -> Attachment:
    """Read a file and keep it as a draft of `conversation` (None: of one that has not begun).

    Raises:
        FileRefused: nothing was kept.
    """
    _check_room(user, conversation)
    document = extract.read(name, data)
    row = Attachment.objects.create(
        owner=user,
        draft_of=conversation,
        name=document.name,
        media_type=document.media_type,
        text=document.text,
        codec=document.codec,
        doubt=document.doubt,
        original=data if document.codec else None,
        num_bytes=len(data),
        num_tokens=_num_tokens(document, conversation),
    )
    log.info("file kept", attachment_id=str(row.pk), num_bytes=row.num_bytes, num_tokens=row.num_tokens)
    return row


def draft_of(user: User, attachment_id: UUID) -> Attachment:
    """A draft that can be read in another encoding, with its bytes. Raises Http404: it was sent, or is no guess."""
    drafts = Attachment.objects.filter(owner=user, message=None, queued=None, original__isnull=False)
    return access.only(drafts.select_related("draft_of").defer("text"), attachment_id)


def read_again(draft: Attachment, codec: str) -> None:
    """Read a draft's bytes in one of `encoding.NAMES`; "" guesses anew.

    Raises:
        FileRefused: they are no text in it; the draft stays as it was.
    """
    document = extract.read(draft.name, bytes(draft.original or b""), codec)
    draft.text, draft.codec, draft.doubt = document.text, document.codec, document.doubt
    draft.num_tokens = _num_tokens(document, draft.draft_of)
    draft.save(update_fields=["text", "codec", "doubt", "num_tokens"])


def remove(user: User, attachment_id: UUID) -> Attachment:
    """Take a draft back. What was sent stays with its message. Raises Http404."""
    row = access.only(Attachment.objects.filter(owner=user, message=None).defer("text", "original"), attachment_id)
    Attachment.objects.filter(pk=row.pk, message=None).delete()
    return row


def drafts_of(user: User, conversation: Conversation | None) -> list[Attachment]:
    """What waits above the message box, the eldest first; without the texts and the bytes."""
    rows = Attachment.objects.filter(owner=user, message=None, queued=None, draft_of=conversation)
    return list(rows.defer("text", "original").order_by("pk"))


def attachment_of(user: User, attachment_id: UUID) -> Attachment:
    """Raises Http404 unless it is the user's."""
    return access.only(Attachment.objects.filter(owner=user), attachment_id)


def chosen(user: User, ids: Iterable[UUID | str]) -> list[Attachment]:
    """The drafts that a message wants to take along, in that order.

    Raises:
        FileRefused: too many, or one of them is not (or no longer) this user's to send.
    """
    wanted = list(dict.fromkeys(map(str, ids)))
    if not wanted:
        return []
    _check_number(len(wanted))
    try:
        drafts = Attachment.objects.filter(owner=user, message=None).defer("original")
        found = drafts.in_bulk([UUID(pk) for pk in wanted])
    except ValueError:
        found = {}
    if len(found) < len(wanted):
        raise FileRefused(_("A file is no longer there; it may have been sent already, or waited longer than a day."))
    return [found[UUID(pk)] for pk in wanted]


def of_message(message: Message) -> list[Attachment]:
    """With their texts, also where `message` was read with its files but without these."""
    return list(Attachment.objects.filter(message=message).order_by("pk"))


def tie(rows: Sequence[Attachment], message: Message) -> None:
    """Make the files part of `message`, inside the caller's transaction: drafts move, those of another are copied.

    Raises:
        FileRefused: a draft went with another message meanwhile.
    """
    drafts = [row.pk for row in rows if row.message_id is None]
    tied = Attachment.objects.filter(pk__in=drafts, message=None).update(message=message, draft_of=None, original=None)
    if tied < len(drafts):
        raise FileRefused(_("A file has been sent with another message meanwhile."))
    copies = [row for row in rows if row.message_id is not None]
    for row in copies:
        row.pk, row.message, row.draft_of, row._state.adding = new_id(), message, None, True
    Attachment.objects.bulk_create(copies)


def sweep_drafts() -> int:
    """Delete drafts that nobody sent within a day; how many."""
    before = timezone.now() - datetime.timedelta(hours=DRAFT_HOURS)
    num_rows, _by_model = Attachment.objects.filter(message=None, queued=None, created_at__lt=before).delete()
    if num_rows:
        log.info("unsent files deleted", num_rows=num_rows)
    return num_rows


def _check_room(user: User, conversation: Conversation | None) -> None:
    drafts = Attachment.objects.filter(owner=user, message=None)
    _check_number(drafts.filter(draft_of=conversation, queued=None).count() + 1)
    if drafts.count() >= MAX_DRAFTS:
        raise FileRefused(_("You have too many files that were not sent. Send or remove some."), http_status=413)


def _check_number(number: int) -> None:
    most = settings.SMOLFLEET.max_files_per_message
    if not most:
        raise FileRefused(_("Files are not taken on this site."), http_status=403)
    if number > most:
        raise FileRefused(_("A message takes along at most %(most)d files.") % {"most": most}, http_status=413)


def _num_tokens(document: extract.Document, conversation: Conversation | None) -> int | None:
    try:
        model = model_choice.choose(conversation.model if conversation else "").model
    except ModelUnknown:
        return None
    return request.tokens_of(extract.section(document.name, document.text), model)
