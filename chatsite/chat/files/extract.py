"""An uploaded file -> its text, and that text -> the part of a prompt the model reads. No database, no HTTP.

Text is recognised by its bytes, never by its name (`encoding`). A PDF is read by a process of its own with limits
(`pdf`). Blocking: called by `attachments` on a thread, and by `request`.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings
from django.utils.translation import gettext as _

from chatsite.chat.errors import SendRefused
from chatsite.chat.files import encoding
from chatsite.chat.files.encoding import Reading
from chatsite.chat.files.pdf import MAX_MEMORY_BYTES
from chatsite.chat.models import FILE_NAME_CHARS
from chatsite.chat.text import clean, clean_typed
from chatsite.usage.words import grouped

PDF_PROGRAM = Path(__file__).with_name("pdf.py")
MAX_PDFS_AT_ONCE = 2  # of one web process
PDF_HEAD_BYTES = 1_024  # the mark of a PDF lies within so many
MEDIA_TYPES = {
    "md": "text/markdown",
    "markdown": "text/markdown",
    "csv": "text/csv",
    "tsv": "text/tab-separated-values",
    "json": "application/json",
    "jsonl": "application/jsonl",
    "html": "text/html",
    "xml": "application/xml",
}

_BACKTICKS = re.compile("`{3,}")
_seats = threading.BoundedSemaphore(MAX_PDFS_AT_ONCE)


class FileRefused(SendRefused):
    """Nothing of the file was kept; the sentence names it and says why."""

    code = "file_refused"

    def __init__(self, message: str, *, http_status: int = 400) -> None:
        super().__init__(message)
        self.http_status = http_status


@dataclass(frozen=True)
class Document:
    """`codec` is the one that was guessed or chosen, empty where there was nothing to guess; `doubt` as a reading's."""

    name: str
    media_type: str
    text: str
    codec: str = ""
    doubt: str = ""


def read(name: str, data: bytes, codec: str = "") -> Document:
    """The text of a file, in the encoding that it has, or in one of `encoding.NAMES` that a person has chosen.

    Raises:
        FileRefused: too large, empty, not text, or a PDF that cannot be read.
    """
    name = name_of(name)
    site = settings.SMOLFLEET
    if len(data) > site.max_file_bytes:
        raise too_large(name)
    if not codec and b"%PDF-" in data[:PDF_HEAD_BYTES]:
        reading, media_type = Reading(_pdf_text(name, data)), "application/pdf"
    else:
        reading, media_type = _plain_text(name, data, codec), MEDIA_TYPES.get(_extension(name), "text/plain")
    text = clean_typed(reading.text).lstrip("\ufeff")
    if not text.strip():
        raise FileRefused(_("“%(name)s” has no text in it.") % {"name": name})
    if len(text) > site.max_file_chars:
        raise _too_long(name)
    return Document(name, media_type, text, reading.codec, reading.doubt)


def name_of(name: str) -> str:
    """A name fit to be shown and stored: one line without folders, its extension kept when it is cut."""
    name = " ".join(clean(name).replace("\\", "/").rsplit("/", 1)[-1].split())
    name = "".join(c for c in name if c.isprintable()) or _("file")
    if len(name) <= FILE_NAME_CHARS:
        return name
    stem, dot, extension = name.rpartition(".")
    extension = dot + extension if stem and len(extension) <= 10 else ""
    return name[: FILE_NAME_CHARS - len(extension) - 1] + "…" + extension


def too_large(name: str) -> FileRefused:
    most = settings.SMOLFLEET.max_file_bytes / 1_048_576
    sentence = _("“%(name)s” is larger than %(most).3g MB, the most a file may have.")
    return FileRefused(sentence % {"name": name, "most": most}, http_status=413)


def section(name: str, text: str) -> str:
    """The file as the model reads it: named, and in a fence that nothing in it closes."""
    longest = max((len(run) for run in _BACKTICKS.findall(text)), default=2)
    fence = "`" * max(3, longest + 1)
    end = "" if text.endswith("\n") else "\n"
    return f"File “{name}”:\n{fence}\n{text}{end}{fence}\n"


def _extension(name: str) -> str:
    return name.rsplit(".", 1)[-1].lower()


def _plain_text(name: str, data: bytes, codec: str) -> Reading:
    try:
        return encoding.read_as(data, codec) if codec else encoding.read(data)
    except encoding.NotText:
        raise _not_text(name, codec) from None


def _pdf_text(name: str, data: bytes) -> str:
    site = settings.SMOLFLEET
    limits = [site.max_pdf_pages, site.max_file_chars, site.max_pdf_seconds]
    if not _seats.acquire(timeout=site.max_pdf_seconds):
        raise FileRefused(_("Too many PDFs are being read just now. Try again in a minute."), http_status=503)
    try:
        # -I: nothing but the library is importable there, whatever the folder or the environment hold.
        command = [sys.executable, "-I", str(PDF_PROGRAM), *map(str, limits)]
        done = subprocess.run(command, input=data, capture_output=True, timeout=site.max_pdf_seconds, check=False)
        # By a signal: the kernel has ended it, for its time was up.
        failed = {"error": "slow" if done.returncode < 0 else "damaged"}
        found = json.loads(done.stdout) if done.returncode == 0 else failed
    except subprocess.TimeoutExpired:
        found = {"error": "slow"}
    finally:
        _seats.release()
    if "text" in found:
        if not found["text"].strip():
            raise FileRefused(_("“%(name)s” has no text in it; perhaps it is a scan.") % {"name": name})
        return str(found["text"])
    raise _pdf_refusal(name, found["error"])


def _pdf_refusal(name: str, error: str) -> FileRefused:
    site = settings.SMOLFLEET
    words = {"name": name, "pages": site.max_pdf_pages, "seconds": site.max_pdf_seconds}
    words["memory"] = MAX_MEMORY_BYTES // 1_048_576
    match error:
        case "encrypted":
            return FileRefused(_("“%(name)s” is locked with a password.") % words)
        case "pages":
            return FileRefused(_("“%(name)s” has more than %(pages)d pages.") % words, http_status=413)
        case "chars":
            return _too_long(name)
        case "memory":
            return FileRefused(_("“%(name)s” takes more than %(memory)d MB of memory to read.") % words)
        case "slow":
            return FileRefused(_("“%(name)s” could not be read within %(seconds)d seconds.") % words)
    return FileRefused(_("“%(name)s” is damaged, or no PDF that can be read here.") % words)


def _too_long(name: str) -> FileRefused:
    sentence = _("“%(name)s” has more than %(most)s characters of text.")
    return FileRefused(sentence % {"name": name, "most": grouped(settings.SMOLFLEET.max_file_chars)}, http_status=413)


def _not_text(name: str, codec: str) -> FileRefused:
    words = {"name": name, "encoding": encoding.NAMES.get(codec, codec[:40])}
    if codec:
        return FileRefused(_("“%(name)s” is no text in the encoding %(encoding)s.") % words)
    return FileRefused(_("“%(name)s” is neither text nor a PDF.") % words)
