"""What a file costs to read grows with its size, whatever its bytes are; a PDF has a cap that is named."""

# ruff: noqa: F811  (fixtures are imported, then asked for by their names)

from __future__ import annotations

import random
import zlib
from collections.abc import Callable

import pytest

from chatsite.chat.files import encoding, extract
from chatsite.chat.files.extract import FileRefused
from tests.cost.meter import assert_bounded, filled
from tests.web.conftest import site  # noqa: F401  (a fixture)
from tests.web.test_attachments import pdf

MS_PER_KB = 20.0  # a guess looks at 32 KB at most, with 22 encodings
SIZES = (4_096, 65_536)

HOSTILE = {
    "high bytes": bytes(range(0x80, 0x100)),
    "one byte": b"\xe9",
    "pairs": b"\xc4\xe3",
    "half surrogates": b"\xd8\x00",
    "utf-8 starts": b"\xc3",
    "utf-8 rests": b"\x80",
    "mixed case": "aÉbÉ".encode("cp1252"),
    "foreign letters": "àéîõü".encode("cp1252"),
    "letters of two scripts": b"a\xe1" * 8,
    "escapes": b"\x1b$B",
    "lines": b"\xe4\n",
    "zeros": b"a\x00",
    "words": "Grüße aus Köln, “schön” – 5 €. ".encode("cp1252"),
}


def _read(data: bytes) -> object:
    try:
        return encoding.read(data)
    except encoding.NotText:
        return None


@pytest.mark.parametrize("pattern", HOSTILE.values(), ids=HOSTILE)
def test_guessing_an_encoding_is_linear(pattern: bytes) -> None:
    assert_bounded(lambda size: filled(pattern, size), _read, ms_per_kb=MS_PER_KB, sizes=SIZES)


def test_random_bytes_are_refused_in_linear_time() -> None:
    chance = random.Random(5)
    text = bytes(byte for byte in range(256) if byte >= 0x20 and byte != 0x7F)
    assert_bounded(lambda size: bytes(chance.choices(text, k=size)), _read, ms_per_kb=MS_PER_KB, sizes=SIZES)


def test_a_fence_around_backticks_is_linear() -> None:
    assert_bounded(lambda size: filled("` `` ", size), lambda text: extract.section("a", text), ms_per_kb=1.0)


def _nested() -> bytes:
    """Arrays in arrays, as the content of a page."""
    return pdf("x", stream=zlib.compress(b"[" * 200_000))


def _wide_tree() -> bytes:
    """A page tree whose only node is its own child, many times."""
    return pdf("x").replace(b"/Kids [4 0 R]", b"/Kids [" + b"2 0 R " * 2_000 + b"]").replace(b"/Count 1", b"/Count 9")


def _long_text() -> bytes:
    return pdf("x", stream=zlib.compress(b"BT /F1 12 Tf (" + b"a" * 5_000_000 + b") Tj ET"))


@pytest.mark.parametrize("make", [_nested, _wide_tree, _long_text])
def test_a_hostile_pdf_ends_with_a_sentence(make: Callable[[], bytes], site: Callable[..., None]) -> None:
    site(max_pdf_seconds=5)
    with pytest.raises(FileRefused, match=r"5 seconds|damaged|MB of memory|characters of text|no text in it"):
        extract.read("a.pdf", make())


def test_a_pdf_that_needs_too_much_memory_is_told_so(
    site: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    """Without reading one for a minute: the program that reads is given less memory than Python needs for a list."""
    source = extract.PDF_PROGRAM.read_text(encoding="utf-8")
    greedy = source.replace("reader = pypdf.PdfReader(io.BytesIO(data))", "raise MemoryError")
    assert greedy != source
    program = extract.Path(str(tmp_path)) / "pdf_text.py"
    program.write_text(greedy, encoding="utf-8")
    monkeypatch.setattr(extract, "PDF_PROGRAM", program)
    with pytest.raises(FileRefused, match=r"“a\.pdf” takes more than 1024 MB of memory"):
        extract.read("a.pdf", pdf("x"))


def test_a_pdf_that_is_ended_for_its_time_is_told_so(
    site: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    source = extract.PDF_PROGRAM.read_text(encoding="utf-8")
    program = extract.Path(str(tmp_path)) / "pdf_text.py"
    program.write_text(source.replace("reader = pypdf", "import os; os.kill(os.getpid(), 24)\n    reader = pypdf"))
    monkeypatch.setattr(extract, "PDF_PROGRAM", program)
    site(max_pdf_seconds=7)
    with pytest.raises(FileRefused, match="could not be read within 7 seconds"):
        extract.read("a.pdf", pdf("x"))
