"""A file of conversations -> rows, all of them or none. What came before, unchanged, is not taken twice.

Ours (a `.json` or the zip of all), and the exports of other programs (`foreign`), each also inside a zip. The file is
bounded before it is read and while it is unpacked; conversations are read one by one. Ids are new, made from the times
in the file, so that imported messages sort by when they were written. Synchronous; called by the views.
"""

from __future__ import annotations

import datetime
import json
import uuid
import zipfile
from collections import Counter
from collections.abc import Iterator
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
from chatsite.chat import access, recording
from chatsite.chat.models import Attachment, Conversation, Feedback, Generation, Message, Tag
from chatsite.transfer import checking, reading, records
from chatsite.transfer.errors import ImportRefused
from chatsite.transfer.foreign import SOURCES
from chatsite.transfer.models import Origin
from chatsite.transfer.records import ConversationFile, ConversationRecord, FeedbackRecord, MessageRecord

log = structlog.get_logger(__name__)

OURS = "smolfleet"
MAX_CONVERSATIONS = 20_000
READ_BYTES = 1 << 20
CHATGPT_FILE = "conversations.json"  # the one of its export that counts; others there are about other things

_items_decoder = msgspec.json.Decoder(list[msgspec.Raw])  # made here: see inference.wire


@dataclass
class Summary:
    """What became of a file."""

    source: str = ""
    num_new: int = 0
    num_known: int = 0
    num_messages: int = 0
    notes: Counter[str] = field(default_factory=Counter)

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
        return told


def import_file(user: User, file: IO[bytes], size: int) -> Summary:
    """Import every conversation of a file.

    Raises:
        ImportRefused: nothing was imported; the sentence says what is wrong, and where.
    """
    if size > settings.SMOLFLEET.max_import_bytes:
        raise _too_large()
    summary = Summary()
    with transaction.atomic():
        User.objects.select_for_update(no_key=True).get(pk=user.pk)  # one import of theirs at a time
        for number, (place, item) in enumerate(_items(file), start=1):
            if number > MAX_CONVERSATIONS:
                raise ImportRefused(_("The file has more than %d conversations.") % MAX_CONVERSATIONS, http_status=413)
            _import_item(user, place, item, summary)
        if not summary.source:
            raise ImportRefused(_("There is no conversation in the file."))
    log.info("imported", user_id=str(user.pk), num_new=summary.num_new, num_known=summary.num_known)
    return summary


def _items(file: IO[bytes]) -> Iterator[tuple[str, bytes | msgspec.Raw]]:
    """Each conversation's JSON with the words for its place."""
    head = file.read(4)
    file.seek(0)
    if head[:2] == b"PK":
        yield from _zipped_items(file)
    else:
        yield from _json_items("", file.read())


def _zipped_items(file: IO[bytes]) -> Iterator[tuple[str, bytes | msgspec.Raw]]:
    bytes_left = settings.SMOLFLEET.max_import_bytes
    try:
        with zipfile.ZipFile(file) as archive:
            names = [info for info in archive.infolist() if info.filename.endswith(".json") and not info.is_dir()]
            names = [info for info in names if not info.filename.startswith(records.ACCOUNT_FOLDER)]
            main = [info for info in names if info.filename.rsplit("/", 1)[-1] == CHATGPT_FILE]
            for info in main or names:
                data = bytearray()
                with archive.open(info) as entry:  # what the directory says of sizes is only a claim
                    while piece := entry.read(min(READ_BYTES, bytes_left + 1)):
                        bytes_left -= len(piece)
                        if bytes_left < 0:
                            raise _too_large()
                        data += piece
                yield from _json_items(f"{info.filename}: ", bytes(data))
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, EOFError, OSError) as error:
        raise ImportRefused(_("The zip file is damaged or locked: %s.") % _first_line(error)) from error


def _json_items(place: str, data: bytes) -> Iterator[tuple[str, bytes | msgspec.Raw]]:
    text = data.removeprefix(b"\xef\xbb\xbf")
    if not text.lstrip().startswith(b"["):
        yield place, text
        return
    try:
        items = _items_decoder.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ImportRefused(_("%(place)sThis is no JSON: %(why)s.") % {"place": place, "why": _why(error)}) from error
    for number, item in enumerate(items, start=1):
        yield _("%(place)sconversation %(number)d: ") % {"place": place, "number": number}, item


def _import_item(user: User, place: str, item: bytes | msgspec.Raw, summary: Summary) -> None:
    try:
        source, record = _record(item, summary.notes)
        record = checking.checked(record)
    except ImportRefused as error:
        raise ImportRefused(f"{place}{error.message}", http_status=error.http_status) from error
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ImportRefused(f"{place}{_why(error)}.") from error
    summary.source = summary.source or source
    digest = records.digest(source, record)
    if Origin.objects.filter(owner=user, digest=digest).exists() or _is_own(user, source, record):
        summary.num_known += 1
        return
    _store(user, record, digest)
    summary.num_new += 1
    summary.num_messages += len(record.messages)


def _record(item: bytes | msgspec.Raw, notes: Counter[str]) -> tuple[str, ConversationRecord]:
    found = _decoded(item)
    if isinstance(found, dict) and found.get("format") == records.FORMAT:
        if found.get("version") != records.VERSION:
            raise ImportRefused(_("it is of version %s, and this site reads 1") % str(found.get("version"))[:20])
        return OURS, msgspec.convert(found, ConversationFile).conversation
    for source in SOURCES:
        if source.knows(found):
            return source.name, source.read(found, notes)
    raise ImportRefused(_("It is no export of this site, ChatGPT, LibreChat or Open WebUI."))


def _decoded(item: bytes | msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(item)
    except msgspec.DecodeError as error:
        if "surrogate" not in str(error):
            raise
        return json.loads(bytes(item))  # half a character, as some programs cut them; `checking` mends it


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
        prompt_date=record.prompt_date or begun_at.date(),
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
        content_sha256=recording.sha256_of(message.content),
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


def _too_large() -> ImportRefused:
    most = settings.SMOLFLEET.max_import_bytes / 1_048_576
    sentence = _("The file is larger than %.3g MB, the most that is imported at once.")
    return ImportRefused(sentence % most, http_status=413)


def _why(error: Exception) -> str:
    return _("it is nested too deeply") if isinstance(error, RecursionError) else _first_line(error)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300].rstrip(".")
