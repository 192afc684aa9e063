"""A record -> a file to take away: Markdown or HTML of the path that is shown, JSON of everything, a zip of all.

The HTML file stands alone: the chat's own renderer, one style block that the file's own content policy names by its
hash, and nothing else that a browser could run or fetch. Names of files are safe on every system.
"""

from __future__ import annotations

import base64
import datetime
import functools
import hashlib
import io
import re
import unicodedata
import zipfile
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.contrib.staticfiles import finders
from django.template.loader import render_to_string
from django.utils import timezone
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _

from chatsite.accounts.models import User
from chatsite.accounts.time_zones import zone_of
from chatsite.chat.queries import access
from chatsite.chat.rendering import stream
from chatsite.chat.streams.follow import in_thread
from chatsite.chat.tools import catalog
from chatsite.transfer import reading, records
from chatsite.transfer.records import CallRecord, ConversationRecord, MessageRecord

MAX_NAME_CHARS = 80
FORMS = {"md": "text/markdown", "html": "text/html", "json": "application/json"}
STYLE_SHEETS = ("css/export.css", "css/code.css", "css/reading.css")

_UNSAFE = re.compile(r'[\x00-\x1f\x7f<>:"/\\|?*]+')
_RESERVED = re.compile(r"(?i)(con|prn|aux|nul|com\d|lpt\d)(\.|$)")  # no file may be called so on some systems


def file_name(record: ConversationRecord, form: str) -> str:
    """A name from the title, fit for every file system."""
    title = unicodedata.normalize("NFC", record.title)
    title = "".join(c if c.isprintable() else " " for c in _UNSAFE.sub(" ", title))
    title = " ".join(title.split())[:MAX_NAME_CHARS].strip(". ")
    if _RESERVED.match(title):
        title = f"_{title}"
    return f"{title or _('Chat')}.{form}"


def written(record: ConversationRecord, form: str, *, with_thoughts: bool = False) -> bytes:
    """The file of a conversation in one of FORMS."""
    match form:
        case "json":
            return records.encode(record)
        case "html":
            return _html(record, with_thoughts).encode()
    return _markdown(record, with_thoughts).encode()


async def zip_of_all(user: User, more: Mapping[str, Callable[[], bytes]] | None = None) -> AsyncIterator[bytes]:
    """All conversations of a user, each as JSON and Markdown, piece by piece: one is in memory at a time.

    In front of them `more`: what makes a file, by its path. JSON that is no conversation has a path that begins with
    `records.ACCOUNT_FOLDER`, so that an import passes it over.
    """
    ids = await in_thread(lambda: list(access.conversations_of(user).order_by("pk").values_list("pk", flat=True)))
    sink = _Sink()
    archive = zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED)
    for path, make in (more or {}).items():
        archive.writestr(path, await in_thread(make))
        yield sink.taken()
    zone = await in_thread(lambda: zone_of(user))
    for pk in ids:
        if (record := await in_thread(_record_if_there, user, pk)) is not None:
            await sync_to_async(_add, thread_sensitive=False)(archive, record, zone)
            yield sink.taken()
    archive.close()
    yield sink.taken()


def _record_if_there(user: User, pk: UUID) -> ConversationRecord | None:
    conversation = access.conversations_of(user).filter(pk=pk).first()  # deleted since the list was made: left out
    return reading.record_of(conversation) if conversation else None


def _add(archive: zipfile.ZipFile, record: ConversationRecord, zone: datetime.tzinfo) -> None:
    with timezone.override(zone):  # the request it is an answer to has ended
        when = _day_of(record) or "undated"
        for form in ("json", "md"):
            name = f"{when} {record.id[-8:]} {file_name(record, form)}"  # the id's end: titles repeat
            archive.writestr(f"{form}/{name}", written(record, form, with_thoughts=True))


def _day_of(record: ConversationRecord) -> str:
    """When it began, where its reader is."""
    begun_at = record.created_at
    return f"{timezone.localtime(begun_at):%Y-%m-%d}" if begun_at and begun_at.tzinfo else ""


class _Sink(io.RawIOBase):
    """A file that is only written, and emptied by whoever sends it on."""

    def __init__(self) -> None:
        super().__init__()
        self._pieces: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._pieces.append(bytes(data))
        return len(data)

    def taken(self) -> bytes:
        data = b"".join(self._pieces)
        self._pieces.clear()
        return data


def _markdown(record: ConversationRecord, with_thoughts: bool) -> str:
    lines = [f"# {_one_line(record.title) or _('Chat')}", ""]
    if day := _day_of(record):
        lines += [f"*{day}*", ""]
    if record.system_prompt:
        lines += [f"## {_('Instructions')}", "", record.system_prompt, ""]
    for message in records.path_of(record):
        lines += [f"## {_speaker(message)}", ""]
        if with_thoughts and message.reasoning:
            lines += [f"> **{_('Thought')}**", ">", *(f"> {line}".rstrip() for line in message.reasoning.splitlines())]
            lines += [""]
        lines += [f"- {_('File')}: {_one_line(file.name)}" for file in message.files] + [""] * bool(message.files)
        lines += [message.content, ""] if message.content or not message.calls else []
        for call in message.calls:
            lines += [f"*{_called(call)}*", "", *_fenced(call.arguments), *_fenced(call.result), ""]
        if state := _state(message):
            lines += [f"*{state}*", ""]
    return "\n".join(lines)


def _html(record: ConversationRecord, with_thoughts: bool) -> str:
    style = _style()
    turns = [
        {
            "is_answer": message.role == "assistant",
            "speaker": _speaker(message),
            "text": message.content,
            "html": stream.render(message.content, f"m{place}") if message.role == "assistant" else "",
            "reasoning": message.reasoning if with_thoughts else "",
            "files": [file.name for file in message.files],
            "calls": [{"title": _called(call), "texts": (call.arguments, call.result)} for call in message.calls],
            "state": _state(message),
        }
        for place, message in enumerate(records.path_of(record))
    ]
    sha256 = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    context = {"record": record, "turns": turns, "style": style, "style_hash": mark_safe(f"sha256-{sha256}")}
    return render_to_string("transfer/export.html", context)


@functools.cache
def _style() -> SafeString:
    texts = []
    for name in STYLE_SHEETS:
        found = finders.find(name)
        if not isinstance(found, str):
            raise FileNotFoundError(name)
        with open(found, encoding="utf-8") as file:
            texts.append(file.read())
    return mark_safe("\n".join(texts))


def _speaker(message: MessageRecord) -> str:
    if message.role == "user":
        return _("You")
    name = message.answer.model if message.answer else ""
    return f"{_('Answer')} ({_one_line(name)})" if name else _("Answer")


def _called(call: CallRecord) -> str:
    said = _("Called %(tool)s, which failed") if call.has_failed else _("Called %(tool)s")
    return said % {"tool": catalog.title_of(call.name)}


def _fenced(text: str) -> list[str]:
    """A block that whatever is in it cannot end."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return ["", fence, text, fence] if text else []


def _state(message: MessageRecord) -> str:
    said = [_("edited")] if message.edited_at else []
    match message.answer.status if message.answer else "":
        case "stopped":
            said.append(_("Stopped here."))
        case "failed":
            said.append(_("The answer broke off."))
    return " · ".join(said)


def _one_line(text: str) -> str:
    return " ".join(text.split())
