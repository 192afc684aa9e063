"""The bytes of a file are read in the encoding that they are in, and a guess is never passed off as knowledge."""

from __future__ import annotations

import random

import pytest

from chatsite.chat.files import encoding
from chatsite.chat.files.encoding import Doubt

TEXTS = {
    "cp1252": "Der Preis ist 5 € – „gut“, sagte er. “It’s fine”, said she.",
    "gb18030": "今天天气很好，我们去公园散步吧。",
    "cp932": "今日は東京タワーに行きました。",
    "euc_jp": "日本語のテキストファイルです。",
    "big5": "今天天氣很好，我們去公園散步吧。",
    "cp949": "오늘은 날씨가 좋습니다. 안녕하세요 세계",
    "cp1251": "Сегодня хорошая погода, пойдём гулять.",
    "koi8_r": "Сегодня хорошая погода, пойдём гулять.",
    "cp866": "Сегодня хорошая погода, пойдём гулять.",
    "cp1250": "Příliš žluťoučký kůň úpěl ďábelské ódy",
    "cp1253": "Καλημέρα κόσμε, τι κάνεις;",
    "cp1254": "Bugün hava çok güzel, değil mi? İstanbul şehri",
    "cp1255": "שלום עולם, מה שלומך היום",
    "cp1256": "مرحبا بالعالم كيف حالك",
    "cp874": "สวัสดีชาวโลก",
    "utf_16_le": "今日は東京タワーに行きました。",
    "utf_16_be": "注意：这里很重要。\n",
    "utf_32_le": "hello wörld",
    "utf_32_be": "hello wörld",
    "iso2022_jp": "今日は東京タワーに行きました。",
}


@pytest.mark.parametrize("codec", TEXTS)
def test_a_text_without_a_mark_is_read_in_its_encoding(codec: str) -> None:
    reading = encoding.read(TEXTS[codec].encode(codec))
    assert (reading.text, reading.codec) == (TEXTS[codec], codec)
    assert reading.codec in encoding.NAMES


@pytest.mark.parametrize("text", ["grüße", "hello world", "Привет, мир", "a,b\r\n1,2\r\n"])
@pytest.mark.parametrize("codec", ["utf_16_le", "utf_16_be"])
def test_utf_16_without_a_mark_is_told_by_its_zeros(text: str, codec: str) -> None:
    assert encoding.read(text.encode(codec)) == encoding.Reading(text, codec)


@pytest.mark.parametrize("text", ["grüße", "café", "It’s 5 €", "你好"])
def test_few_signs_make_an_unsure_guess(text: str) -> None:
    codec = "gb18030" if text == "你好" else "cp1252"
    assert encoding.read(text.encode(codec)) == encoding.Reading(text, codec, Doubt.UNSURE)


def test_valid_utf_8_is_utf_8_and_no_guess() -> None:
    for text in (*TEXTS.values(), "ASCII", "Ã¤ Ã¶", "Â£5", "ｶﾀｶﾅ", "\u0080x" * 0 + "x"):
        assert encoding.read(text.encode()) == encoding.Reading(text)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("naïve café".encode()[:-1], "naïve caf�"),
        ("café".encode()[:-1], "caf�"),
        ("你好".encode()[:-1], "你�"),
        ("日本語のテキスト".encode()[1:], "��本語のテキスト"),
        ("é".encode()[1:] + "été à la plage".encode(), "�été à la plage"),
        ("grüße, schöne ".encode() + b"\xff" + "Grüße".encode(), "grüße, schöne �Grüße"),
        ("grüße".encode("utf-16")[:-1], "grüß�"),
    ],
)
def test_cut_or_damaged_unicode_stays_unicode_and_says_so(data: bytes, text: str) -> None:
    reading = encoding.read(data)
    assert (reading.text, reading.doubt) == (text, Doubt.DAMAGED)
    assert reading.codec.startswith("utf")


def test_a_word_of_western_europe_at_the_end_is_not_taken_for_cut_utf_8() -> None:
    assert encoding.read("un café".encode("cp1252")).text == "un café"


@pytest.mark.parametrize(
    "data",
    [
        bytes(range(256)) * 20,
        b"PK\x03\x04" + bytes(300),
        b"\xff\xfe\x00",
        random.Random(1).randbytes(3_000),
        random.Random(2).randbytes(301),
        b"\x89PNG\r\n\x1a\n" + random.Random(3).randbytes(60),
        b"a\0b",
        b"\x81" * 51,
    ],
    ids=range(8),
)
def test_what_is_no_text_is_refused(data: bytes) -> None:
    with pytest.raises(encoding.NotText):
        encoding.read(data)


def test_a_person_may_choose_another_encoding() -> None:
    data = "Łódź".encode("iso8859_2")
    assert encoding.read_as(data, "iso8859_2") == encoding.Reading("Łódź", "iso8859_2")
    assert encoding.read_as(b"\x81 abc", "cp1252") == encoding.Reading("� abc", "cp1252", Doubt.DAMAGED)
    for codec in ("rot13", "zlib", "unicode_escape", "idna", "../utf-8", ""):
        with pytest.raises(encoding.NotText):
            encoding.read_as(data, codec)


def test_a_guess_looks_beyond_a_long_english_beginning() -> None:
    text = "plain words\n" * 20_000 + TEXTS["gb18030"] + "\n" + "more words\n" * 20_000
    assert encoding.read(text.encode("gb18030")) == encoding.Reading(text, "gb18030")
