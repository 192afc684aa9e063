"""A file that was uploaded -> the JSON values in it, one at a time, bounded before and while they are unpacked.

A `.json` file with one value or a list of them, or a zip of such files. Of a zip, what other programs and systems leave
in it is passed over by where it lies; which values are conversations is for `importing` to see. Knows no database.
"""

from __future__ import annotations

import codecs
import json
import math
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

import msgspec
from django.conf import settings
from django.utils.translation import gettext as _

from chatsite.chat.text import clean
from chatsite.transfer import records
from chatsite.transfer.errors import ImportRefused

READ_BYTES = 1 << 20
MAX_DIRECTORY_BYTES = 8 << 20  # of a zip: its list of names, which is read as one
BYTES_PER_BRACKET = 32  # of the largest file: a real one has hundreds, and each costs far more memory than on paper
BYTES_PER_COMMA = 10
MAX_DIGITS = 18  # of a whole number, as many as 64 bits hold

_GAP = re.compile(r"[ \t\r\n]*")


def _number(text: str) -> float | None:
    """None for what is too large for a number: whoever wants one there says so, of that conversation alone."""
    found = float(text)
    return found if math.isfinite(found) else None


def _whole_number(text: str) -> int | float | None:
    return int(text) if len(text) <= MAX_DIGITS else _number(text)


_decoder = json.JSONDecoder(parse_float=_number, parse_int=_whole_number, parse_constant=lambda _name: None)


@dataclass(frozen=True)
class Value:
    """A value of a file. `number` is its place in the file's list, from 1; 0: the file is this value alone."""

    data: Any
    number: int = 0


class Broken(Exception):
    """From here on a file is no JSON; the sentence says why. What came before stands. `number`: a value's place."""

    number = 0


def files(file: IO[bytes]) -> Iterator[tuple[str, bytes]]:
    """The name and the content of each JSON file in it; its own has no name.

    Raises:
        ImportRefused: too large, damaged or locked.
    """
    head = file.read(4)
    file.seek(0)
    if head[:2] != b"PK":
        yield "", file.read()
        return
    bytes_left = settings.SMOLFLEET.max_import_bytes
    try:
        with zipfile.ZipFile(_Bounded(file)) as archive:
            for info in filter(_is_wanted, archive.infolist()):
                data = bytearray()
                with archive.open(info) as entry:  # what the directory says of sizes is only a claim
                    while piece := entry.read(min(READ_BYTES, bytes_left + 1)):
                        bytes_left -= len(piece)
                        if bytes_left < 0:
                            raise too_large()
                        data += piece
                yield info.filename, bytes(data)
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, EOFError, OSError, ValueError) as error:
        raise ImportRefused(_("The zip file is damaged or locked: %s.") % first_line(error)) from error


def values(data: bytes) -> Iterator[Value]:
    """What a JSON file holds. A list is read item by item, so that only one is in memory.

    Raises:
        Broken: after the values before it.
    """
    _check_room(data)
    text = _text(data)
    place = _end_of_gap(text, 0)
    if text[place : place + 1] != "[":
        found, end = _value(text, place)
        if _end_of_gap(text, end) < len(text):
            raise Broken(_("something follows its end"))
        yield Value(found)
        return
    place = _end_of_gap(text, place + 1)
    number = 0
    try:
        while text[place : place + 1] != "]":
            number += 1
            found, place = _value(text, place)
            yield Value(found, number)
            del found
            place = _behind_comma(text, place)
    except Broken as broken:
        broken.number = number
        raise


def _behind_comma(text: str, place: int) -> int:
    """Where the next value of a list begins, or the list ends."""
    place = _end_of_gap(text, place)
    if text[place : place + 1] == ",":
        return _end_of_gap(text, place + 1)
    if text[place : place + 1] != "]":
        raise Broken(_("it ends within a list") if place >= len(text) else _("a comma is missing in it"))
    return place


def too_large() -> ImportRefused:
    most = settings.SMOLFLEET.max_import_bytes / 1_048_576
    sentence = _("The file is larger than %.3g MB, the most that is imported at once.")
    return ImportRefused(sentence % most, http_status=413)


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300].rstrip(".")


def why(error: Exception) -> str:
    return _("it is nested too deeply") if isinstance(error, RecursionError) else first_line(error)


class _Bounded:
    """A zip file whose list of names is refused where reading it would take long: names cost few bytes each."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.seek, self.tell = file.seek, file.tell

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if size > MAX_DIRECTORY_BYTES:
            raise ImportRefused(_("The zip file has too many files in it."), http_status=413)
        return self._file.read(size)


def _is_wanted(info: zipfile.ZipInfo) -> bool:
    """A Mac puts a file of its own beside each, of the same name behind `._`."""
    folder, _slash, name = info.filename.rpartition("/")
    is_own = info.filename.startswith(records.ACCOUNT_FOLDER) or "__MACOSX" in folder.split("/") or name[:1] == "."
    return name.lower().endswith(".json") and not info.is_dir() and not is_own


def _check_room(data: bytes) -> None:
    most = settings.SMOLFLEET.max_import_bytes
    num_brackets = data.count(b"[") + data.count(b"{")
    if num_brackets > most // BYTES_PER_BRACKET or data.count(b",") > most // BYTES_PER_COMMA:
        raise Broken(_("it has more values in it than a file of conversations"))


def _text(data: bytes) -> str:
    is_utf_16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        return data.decode("utf-16") if is_utf_16 else data.removeprefix(codecs.BOM_UTF8).decode(errors="surrogatepass")
    except UnicodeDecodeError as error:
        raise Broken(first_line(error)) from error


def _end_of_gap(text: str, place: int) -> int:
    found = _GAP.match(text, place)
    return found.end() if found else place


def _value(text: str, place: int) -> tuple[Any, int]:
    try:
        found, end = _decoder.raw_decode(text, place)
        return _mended(found), end
    except StopIteration as stop:
        raise Broken(_("a value is missing in it")) from stop
    except (ValueError, RecursionError) as error:
        raise Broken(why(error)) from error


def _mended(found: Any) -> Any:
    """Half a character, as some programs cut them, becomes U+FFFD, wherever it is."""
    try:
        msgspec.json.encode(found)
        return found
    except UnicodeEncodeError:
        pass
    mended: list[Any] = [found]
    waiting: list[dict[Any, Any] | list[Any]] = [mended]
    while waiting:  # iterative: depth costs no stack
        holder = waiting.pop()
        for key, value in list(holder.items() if isinstance(holder, dict) else enumerate(holder)):
            if isinstance(value, str):
                holder[key] = clean(value)
            elif isinstance(value, dict | list):
                waiting.append(value)
            if isinstance(key, str) and isinstance(holder, dict) and (plain := clean(key)) != key:
                holder[plain] = holder.pop(key)
    return mended[0]
