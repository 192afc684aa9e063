"""The bytes of a text file -> its text, with the encoding it was read in and how far that is to be trusted.

A mark at the beginning decides, then UTF-8: what is valid UTF-8 is nothing else. UTF-8 that was cut or damaged stays
UTF-8. Only then is an encoding guessed (`encoding_guess`), and a guess is told: no text is silently taken for another.
What is looked at for a guess is bounded, so that the cost of a file grows with its size. Pure. Called by `documents`.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from enum import StrEnum

from chatsite.chat.files import encoding_guess

SAMPLE_BYTES = 32_768
MAX_CONTROL_SHARE = 0.02  # of a text's characters; more is no text
VALID_PER_DAMAGED = 2  # characters of UTF-8 for each piece that is none: chance makes far fewer
ZERO_SHARE = 0.2  # of one half of all bytes, when they are pairs

# What a person may choose, by the codec that reads it: the names by which programs ask for them.
NAMES = {
    "utf-8": "UTF-8",
    "utf_16_le": "UTF-16 LE",
    "utf_16_be": "UTF-16 BE",
    "utf_32_le": "UTF-32 LE",
    "utf_32_be": "UTF-32 BE",
    "cp1252": "Windows-1252",
    "cp1250": "Windows-1250",
    "cp1251": "Windows-1251",
    "cp1253": "Windows-1253",
    "cp1254": "Windows-1254",
    "cp1255": "Windows-1255",
    "cp1256": "Windows-1256",
    "cp1257": "Windows-1257",
    "cp1258": "Windows-1258",
    "cp874": "Windows-874",
    "gb18030": "GBK (GB18030)",
    "big5": "Big5",
    "cp932": "Shift-JIS",
    "euc_jp": "EUC-JP",
    "iso2022_jp": "ISO-2022-JP",
    "cp949": "EUC-KR",
    "koi8_r": "KOI8-R",
    "koi8_u": "KOI8-U",
    "cp866": "DOS 866",
    "cp437": "DOS 437",
    "cp850": "DOS 850",
    "iso8859_2": "ISO 8859-2",
    "iso8859_15": "ISO 8859-15",
    "mac_roman": "Mac Roman",
}

_BOMS = (  # the longer first: that of UTF-32 begins with that of UTF-16
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_CONTROL = re.compile("[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f\x7f-\x9f]")
_CONTROL_BYTES = bytes([*range(0x09), 0x0B, *range(0x0E, 0x1B), *range(0x1C, 0x20), 0x7F])
_HIGH_BYTE = re.compile(rb"[\x80-\xff]")
_SHIFTED = (b"\x1b$B", b"\x1b$@")  # ISO-2022-JP is all ASCII, and so valid UTF-8 that nobody can read


class Doubt(StrEnum):
    """Why a reader should look at the text. Stored with a file."""

    NONE = ""
    UNSURE = "unsure"  # another encoding is nearly as likely
    DAMAGED = "damaged"  # some bytes mean nothing in it; they show as U+FFFD


@dataclass(frozen=True)
class Reading:
    """`codec` is empty where the file itself says what it is: by a mark, or as valid UTF-8."""

    text: str
    codec: str = ""
    doubt: Doubt = Doubt.NONE


class NotText(Exception):
    """The bytes are no text in any encoding, or not in the one that was asked for."""


def read(data: bytes) -> Reading:
    """Raises NotText."""
    for bom, codec in _BOMS:
        if data.startswith(bom):
            return _checked(_marked(data, codec))
    if any(mark in data for mark in _SHIFTED) and (text := _strictly(data, "iso2022_jp")) is not None:
        return _checked(Reading(text, "iso2022_jp"))
    if (text := _strictly(data, "utf-8")) is not None and not _is_noise(text):
        return Reading(text)
    return _checked(_wide(data) or (_damaged_utf8(data) if text is None else None) or _guessed(data))


def read_as(data: bytes, codec: str) -> Reading:
    """In the encoding that a person chose, one of NAMES; what it cannot read shows as U+FFFD.

    Raises:
        NotText: there is no such encoding, or hardly anything is text in it.
    """
    if codec not in NAMES:
        raise NotText(codec)
    reading = _forced(data, codec)
    if 2 * reading.text.count("\ufffd") > len(reading.text):
        raise NotText(codec)
    return _checked(reading)


def _checked(reading: Reading) -> Reading:
    if _is_noise(reading.text):
        raise NotText(reading.codec)
    return reading


def _is_noise(text: str) -> bool:
    """Also what is valid UTF-8 may be: UTF-16 of Latin and Cyrillic letters has control characters in every pair."""
    return len(_CONTROL.findall(text)) > MAX_CONTROL_SHARE * len(text)


def _marked(data: bytes, codec: str) -> Reading:
    """What says of itself what it is. Cut within a character it is still that."""
    if (text := _strictly(data, codec)) is not None:
        return Reading(text)
    half = "le" if data.startswith(b"\xff") else "be"
    name = {"utf-8-sig": "utf-8", "utf-16": f"utf_16_{half}", "utf-32": f"utf_32_{half}"}[codec]
    text = data.decode(codec, "replace")
    if codec != "utf-8-sig" and text.count("\ufffd") > min(1, len(text) - 1):
        raise NotText(name)
    return Reading(text, name, Doubt.DAMAGED)


def _wide(data: bytes) -> Reading | None:
    """UTF-16 or UTF-32 without a mark, by where their zeros are; an odd byte at the end was cut off."""
    if b"\0" not in data:
        return None
    head = data[: SAMPLE_BYTES - SAMPLE_BYTES % 4]
    shares = [head[place::4].count(0) / max(1, len(head[place::4])) for place in range(4)]
    if min(shares[2:]) > 0.9 > shares[0]:
        codec = "utf_32_le"
    elif min(shares[:2]) > 0.9 > shares[3]:
        codec = "utf_32_be"
    elif min(shares[1], shares[3]) > ZERO_SHARE and max(shares[0], shares[2]) < ZERO_SHARE / 4:
        codec = "utf_16_le"
    elif min(shares[0], shares[2]) > ZERO_SHARE and max(shares[1], shares[3]) < ZERO_SHARE / 4:
        codec = "utf_16_be"
    else:
        return None
    reading = _forced(data, codec)
    return reading if reading.text.count("\ufffd") <= 1 and not _CONTROL.search(reading.text) else None


def _damaged_utf8(data: bytes) -> Reading | None:
    """UTF-8 with an end or a beginning cut off, or with bytes in it that are none."""
    text = data.decode("utf-8", "replace")
    num_damaged = text.count("\ufffd")
    num_valid = sum(map(len, re.findall(r"[^\x00-\x7f\ufffd]+", text)))
    if num_valid >= VALID_PER_DAMAGED * num_damaged or _is_cut(data, num_valid, num_damaged):
        return Reading(text, "utf-8", Doubt.DAMAGED)
    return None


def _is_cut(data: bytes, num_valid: int, num_damaged: int) -> bool:
    """Whether all that is wrong is a character begun at the very end. One lone byte there may be a letter of another
    encoding, unless it is one that begins the letters of Western Europe and ends no word of theirs."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        decoder.decode(data)
    except UnicodeDecodeError:
        return False
    rest = decoder.getstate()[0]
    return num_damaged == 1 and (num_valid > 0 or len(rest) > 1 or rest in (b"\xc2", b"\xc3"))


def _guessed(data: bytes) -> Reading:
    sample = _sample(data)
    if len(sample.translate(None, _CONTROL_BYTES)) < (1 - MAX_CONTROL_SHARE) * len(sample) and not _may_be_utf16(data):
        raise NotText("")
    guess = encoding_guess.guess(sample)
    if guess is None:
        raise NotText("")
    reading = _forced(data, guess.codec)
    if reading.doubt is Doubt.DAMAGED and reading.text.count("\ufffd") > MAX_CONTROL_SHARE * len(reading.text):
        raise NotText(guess.codec)
    return reading if guess.is_sure else Reading(reading.text, reading.codec, reading.doubt or Doubt.UNSURE)


def _may_be_utf16(data: bytes) -> bool:
    """Whether zeros, of spaces and line ends, stand in one half alone; else control characters are what they seem."""
    return len(data) % 2 == 0 and not (data[::2].count(0) and data[1::2].count(0))


def _forced(data: bytes, codec: str) -> Reading:
    if (text := _strictly(data, codec)) is not None:
        return Reading(text, codec)
    return Reading(data.decode(codec, "replace"), codec, Doubt.DAMAGED)


def _strictly(data: bytes, codec: str) -> str | None:
    try:
        return data.decode(codec)
    except UnicodeDecodeError:
        return None


def _sample(data: bytes) -> bytes:
    """A stretch from the line of the first byte that is not ASCII; it ends with a line where it can."""
    first = _HIGH_BYTE.search(data)
    begin = data.rfind(b"\n", 0, first.start()) + 1 if first else 0
    begin = max(begin, first.start() - SAMPLE_BYTES // 2) if first else 0
    sample = data[begin : begin + SAMPLE_BYTES]
    end = sample.rfind(b"\n")
    return sample[: end + 1] if begin + SAMPLE_BYTES < len(data) and end > SAMPLE_BYTES // 2 else sample
