"""A file of conversations -> rows. What came before, unchanged, is not taken twice; what is wrong is named.

Ours (a `.json` or the zip of all), and the exports of other programs (`foreign`), each also inside a zip (`opening`).
Conversations are read one by one: of each all is taken or nothing, and one that cannot be read costs no other. Ids are
new, made from the times in the file, so that imported messages sort by when they were written. Synchronous; called by
the views.
"""

from __future__ import annotations

import datetime
import uuid
from collections import Counter
from dataclasses import dataclass, field
from typing import IO, Any

import msgspec
import structlog
from django.conf import settings
from django.db import connection, transaction
from django.db.models import Model
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from chatsite.accounts.models import User, new_id
from chatsite.accounts.time_zones import zone_of
from chatsite.chat.models import Attachment, Conversation, Feedback, Generation, Message, Tag
from chatsite.chat.queries import access
from chatsite.chat.text import clean, sha256_of, title_of
from chatsite.transfer import checking, opening, reading, records
from chatsite.transfer.errors import ImportRefused
from chatsite.transfer.foreign import SOURCES, Source
from chatsite.transfer.models import Origin
from chatsite.transfer.records import ConversationFile, ConversationRecord, FeedbackRecord, MessageRecord

log = structlog.get_logger(__name__)

OURS = "smolfleet"
MAX_CONVERSATIONS = 20_000
MAX_FAILURES_TOLD = 20
TITLE_TOLD_CHARS = 60


@dataclass(frozen=True)
class Failure:
    """A conversation, or the rest of a file, that was not imported. `place` and `title` may be empty."""

    place: str
    title: str
    reason: str
    http_status: int = 400

    def __str__(self) -> str:
        title = f"“{self.title}”" if self.title else ""
        where = " ".join(filter(None, (self.place, title)))
        return f"{where}: {self.reason}." if where else f"{self.reason}."


@dataclass
class Summary:
    """What became of a file."""

    source: str = ""
    num_new: int = 0
    num_known: int = 0
    num_messages: int = 0
    num_values: int = 0  # looked at, whatever they were
    notes: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    passed_over: list[str] = field(default_factory=list)  # names of files with no conversation in them

    def sentences(self) -> list[str]:
        """For people, the most important first."""
        words = {"source": self.source, "n": self.num_new, "messages": self.num_messages}
        first = ngettext(
            "%(n)d conversation with %(messages)d messages was imported (%(source)s).",
            "%(n)d conversations with %(messages)d messages were imported (%(source)s).",
            self.num_new,
        )
        told = [first % words]
        if self.num_known:
            known = ngettext("%d was here already.", "%d were here already.", self.num_known)
            told.append(known % self.num_known)
        told += [
            _("Left out: %(n)d × %(what)s.") % {"n": n, "what": what} for what, n in sorted(self.notes.items()) if n
        ]
        if self.passed_over:
            names = ", ".join(name[:TITLE_TOLD_CHARS] for name in self.passed_over[:MAX_FAILURES_TOLD])
            told.append(_("Passed over, with no conversation in them: %(names)s.") % {"names": names})
        return told

    def complaints(self) -> list[str]:
        """What was not imported, each with its reason."""
        told = [str(failure) for failure in self.failures[:MAX_FAILURES_TOLD]]
        if more := len(self.failures) - len(told):
            told.append(ngettext("%d more was not imported.", "%d more were not imported.", more) % more)
        return told


def import_file(user: User, file: IO[bytes], size: int) -> Summary:
    """Import every conversation of a file that can be read; what cannot is in the summary.

    Raises:
        ImportRefused: nothing was imported; the sentence says what is wrong, and where.
    """
    if size > settings.SMOLFLEET.max_import_bytes:
        raise opening.too_large()
    summary = Summary()
    with transaction.atomic():
        User.objects.select_for_update(no_key=True).get(pk=user.pk)  # one import of theirs at a time
        for name, data in opening.files(file):
            _import_values(user, name, data, summary)
    if not summary.num_new and not summary.num_known:
        raise _nothing(summary)
    log.info(
        "imported",
        user_id=str(user.pk),
        num_new=summary.num_new,
        num_known=summary.num_known,
        num_failed=len(summary.failures),
    )
    return summary


def _import_values(user: User, name: str, data: bytes, summary: Summary) -> None:
    """What a file holds. One in a zip in which nothing is a conversation is about other things, and passed over."""
    strangers: list[Failure] = []
    has_known = False
    try:
        for value in opening.values(data):
            summary.num_values += 1
            if summary.num_values > MAX_CONVERSATIONS:
                raise ImportRefused(_("The file has more than %d conversations.") % MAX_CONVERSATIONS, http_status=413)
            reader = _reader_of(value.data)
            if reader is None:
                strangers.append(_failure(name, value, _("It is no conversation of a program that is known here")))
                continue
            has_known = True
            try:
                _import_one(user, reader, value.data, summary)
            except ImportRefused as error:
                summary.failures.append(_failure(name, value, error.message, error.http_status))
    except opening.Broken as broken:
        summary.failures.append(Failure(_place(name, broken.number), "", _("This is no JSON: %s") % broken))
    if has_known or not name:
        summary.failures += strangers
    else:
        summary.passed_over.append(name)


def _import_one(user: User, reader: Source, found: Any, summary: Summary) -> None:
    """Raises ImportRefused; then nothing of it was stored."""
    notes: Counter[str] = Counter()
    try:
        record = checking.checked(reader.read(found, notes))
    except (msgspec.ValidationError, RecursionError) as error:
        raise ImportRefused(opening.why(error)) from error
    summary.source = summary.source or reader.name
    summary.notes += notes
    digest = records.digest(reader.name, record)
    if Origin.objects.filter(owner=user, digest=digest).exists() or _is_own(user, reader.name, record):
        summary.num_known += 1
        return
    _store(user, record, digest)
    summary.num_new += 1
    summary.num_messages += len(record.messages)


def _read_ours(found: Any, notes: Counter[str]) -> ConversationRecord:
    if found.get("version") != records.VERSION:
        raise ImportRefused(_("it is of version %s, and this site reads 1") % str(found.get("version"))[:20])
    return msgspec.convert(found, ConversationFile).conversation


_OURS = Source(OURS, OURS, lambda found: isinstance(found, dict) and found.get("format") == records.FORMAT, _read_ours)


def _reader_of(found: Any) -> Source | None:
    return next((source for source in (_OURS, *SOURCES) if source.knows(found)), None)


def _failure(name: str, value: opening.Value, reason: str, http_status: int = 400) -> Failure:
    found = value.data if isinstance(value.data, dict) else {}
    inner = found.get("conversation")
    titles = (found.get("title"), found.get("name"), inner.get("title") if isinstance(inner, dict) else None)
    title = next((title for title in titles if isinstance(title, str) and title.strip()), "")
    return Failure(
        _place(name, value.number), title_of(clean(title), TITLE_TOLD_CHARS), reason.rstrip("."), http_status
    )


def _place(name: str, number: int) -> str:
    """Where in the file: the name of one in a zip, and the place in its list."""
    words = [clean(name)[:200]] if name else []
    return ", ".join([*words, *([_("conversation %d") % number] if number else [])])


def _nothing(summary: Summary) -> ImportRefused:
    """Why nothing at all was imported."""
    if not summary.failures:
        return ImportRefused(_("There is no conversation in the file."))
    return ImportRefused(" ".join(summary.complaints()), http_status=summary.failures[0].http_status)


def _is_own(user: User, source: str, record: ConversationRecord) -> bool:
    """Whether it is still here itself, just as it was when it was exported."""
    if source != OURS:
        return False
    try:
        original = access.conversations_of(user).filter(pk=uuid.UUID(record.id)).first()
    except ValueError:
        return False
    return original is not None and reading.record_of(original) == record


def _store(user: User, record: ConversationRecord, digest: str) -> Conversation:
    now = timezone.now()
    begun_at = record.created_at or now
    conversation = Conversation.objects.create(
        owner=user,
        title=record.title,
        is_title_own=record.is_title_own,
        model=record.model,
        system_prompt=record.system_prompt,
        thinking=record.thinking,
        tools=record.tools,
        thinking_budget=record.thinking_budget,
        temperature=record.temperature,
        top_p=record.top_p,
        max_tokens=record.max_tokens,
        prompt_date=record.prompt_date or begun_at.astimezone(zone_of(user)).date(),
        pinned_at=record.pinned_at,
        archived_at=record.archived_at,
    )
    messages = _store_messages(user, conversation, record, begun_at)
    conversation.created_at = begun_at
    conversation.updated_at = record.updated_at or begun_at
    conversation.leaf = messages[record.leaf] if record.leaf is not None else None
    conversation.save(update_fields=["created_at", "updated_at", "leaf"])
    for name in record.tags:
        conversation.tags.add(Tag.objects.get_or_create(owner=user, name=name)[0])
    Origin.objects.create(owner=user, conversation=conversation, digest=digest)
    return conversation


def _store_messages(
    user: User, conversation: Conversation, record: ConversationRecord, begun_at: datetime.datetime
) -> list[Message]:
    rows: list[Message] = []
    last_ms = 0
    for message in record.messages:
        written_at = message.created_at or begun_at
        last_ms = max(last_ms + 1, _ms(written_at))  # the order in the list is the order of the ids
        row = Message(
            pk=_id_at(last_ms),
            conversation=conversation,
            parent=rows[message.parent] if message.parent is not None else None,
            role=message.role,
            content=message.content,
            reasoning=message.reasoning,
            calls=[msgspec.to_builtins(call) for call in message.calls] or None,
            edited_at=message.edited_at,
        )
        rows.append(row)
    Message.objects.bulk_create(rows, batch_size=500)
    generations = [_generation(user, row, message) for row, message in zip(rows, record.messages) if message.answer]
    begun = [generation.created_at for generation in generations]
    Generation.objects.bulk_create(generations, batch_size=500)
    for row, message in zip(rows, record.messages):
        row.created_at = message.created_at or begun_at
        _store_files(user, row, message)
        if message.feedback is not None:
            _store_feedback(row, message.feedback)
    _keep_times(Message, {row.pk: row.created_at for row in rows})
    _keep_times(Generation, {row.pk: begun_at for row, begun_at in zip(generations, begun)})
    return rows


def _keep_times(model: type[Model], times: dict[uuid.UUID, datetime.datetime]) -> None:
    """Set `created_at`, which creation sets to now whatever a row held."""
    change = (
        f'UPDATE "{model._meta.db_table}" AS row SET created_at = given.at'
        " FROM unnest(%s::uuid[], %s::timestamptz[]) AS given (id, at) WHERE row.id = given.id"
    )
    with connection.cursor() as cursor:
        cursor.execute(change, [list(times), list(times.values())])


def _generation(user: User, row: Message, message: MessageRecord) -> Generation:
    answer = message.answer
    assert answer is not None, "asked for answers alone"
    created_at = answer.created_at or message.created_at or timezone.now()
    return Generation(
        pk=_id_at(_ms(created_at)),
        user=user,
        message=row,
        model=answer.model,
        status=answer.status,
        finish_reason=answer.finish_reason,
        cut=answer.cut,
        error_code=answer.error_code,
        error_message=answer.error_message,
        is_retryable=answer.is_retryable,
        worker=answer.worker,
        prompt_tokens=answer.prompt_tokens,
        cached_tokens=answer.cached_tokens,
        completion_tokens=answer.completion_tokens,
        reasoning_tokens=answer.reasoning_tokens,
        num_dropped=answer.num_dropped,
        decode_seconds=answer.decode_seconds,
        content_sha256=sha256_of(message.content),
        created_at=created_at,
        ended_at=answer.ended_at or created_at,
    )


def _store_files(user: User, row: Message, message: MessageRecord) -> None:
    for file in message.files:
        Attachment.objects.create(
            owner=user,
            message=row,
            name=file.name,
            media_type=file.media_type,
            text=file.text,
            num_bytes=file.num_bytes,
            num_tokens=file.num_tokens,
        )


def _store_feedback(row: Message, feedback: FeedbackRecord) -> None:
    Feedback.objects.create(message=row, rating=feedback.rating, reason=feedback.reason, comment=feedback.comment)


def _ms(when: datetime.datetime) -> int:
    return max(0, int(when.timestamp() * 1000))


def _id_at(ms: int) -> uuid.UUID:
    """A UUIDv7 of that time; the rest is as random as in any."""
    return uuid.UUID(int=(ms << 80) | (new_id().int & ((1 << 80) - 1)))
