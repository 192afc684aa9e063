"""What a viewer is told: our page puts together what the server sees, in few bytes; any client gets plain words."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatsite.chat.actions import quote
from chatsite.chat.rendering.stream import BlockStream, blocks
from chatsite.chat.streams.frame_format import ForPage, Plain
from tests.unit.test_markdown_stream import DOCUMENTS, TEXTS

MAX_FACTOR = 5.0  # of the text's bytes in deltas; the settled article takes one more, for the source that is copied


class Page:
    """What the page's script does with the frames, in its own units."""

    def __init__(self) -> None:
        self.blocks = ""
        self.told = ""
        self.grown = ""

    def take(self, said: dict[str, Any]) -> None:
        if "html" in said:
            whole = units(self.told)[: 2 * said.get("keep", 0)] + units(said["html"])
            cut = 2 * said.get("cut", 0)
            self.blocks += whole[:cut].decode("utf-16-le")
            self.told = whole[cut:].decode("utf-16-le")
            self.grown = ""
        self.grown += said.get("grow", "")

    @property
    def tail(self) -> str:
        escaped = self.grown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        before, mark, after = self.told.rpartition("</b>")
        return before + escaped + mark + after if self.told else self.grown


def units(text: str) -> bytes:
    return text.encode("utf-16-le")


def follow(pieces: list[str]) -> tuple[Page, int]:
    """A page that was told all `pieces`, and the bytes that took as server-sent events."""
    stream, telling, page, num_bytes = BlockStream(), ForPage(), Page(), 0
    for number, piece in enumerate(pieces):
        said = telling.take(piece, stream.feed(piece), stream.view)
        if said:
            page.take(said)
            head = f"event: delta\nid: 0123456789abcdef:{number}\ndata: \n\n"
            num_bytes += len(head) + len(msgspec.json.encode(said))
        assert page.tail == stream.view().whole
    rest = stream.finish()
    page.blocks += "".join(rest)
    return page, num_bytes + len(msgspec.json.encode(rest))


def cut(text: str, size: int) -> list[str]:
    return [text[begin : begin + size] for begin in range(0, len(text), size)]


@pytest.mark.parametrize("text", [*DOCUMENTS.values(), "**😀 b** 😀😀 `x`\n\n- 😀\n- 👩‍💻 *y* z\n\nend"])
@pytest.mark.parametrize("size", [1, 3, 17])
def test_page_shows_at_each_moment_what_the_server_sees(text: str, size: int) -> None:
    page, _ = follow(cut(text, size))
    assert page.blocks == "".join(blocks(text))


@given(TEXTS, st.integers(1, 40))
@settings(deadline=None, max_examples=100)
def test_no_text_is_told_wrong(text: str, size: int) -> None:
    page, _ = follow(cut(text, size))
    assert page.blocks == "".join(blocks(text))


def test_page_that_comes_in_the_middle_needs_nothing_it_does_not_have() -> None:
    text = DOCUMENTS["mixed"]
    for begin in range(0, len(text), 7):
        stream, telling, page = BlockStream(), ForPage(), Page()
        update = stream.feed(text[:begin])
        telling.take(text[:begin], update, stream.view)
        telling.forget()
        page.blocks, loaded = "".join(update.blocks), stream.view()
        page.told, page.grown = "", ""
        first = telling.take(text[begin : begin + 9], stream.feed(text[begin : begin + 9]), stream.view)
        if "html" not in first:
            assert stream.view().html == loaded.html
            assert stream.view().text == loaded.text + first.get("grow", "")
            continue
        assert "keep" not in first
        page.take(first)
        assert page.tail == stream.view().whole


def test_mixed_document_of_48_kb_takes_few_bytes() -> None:
    """At 100 tokens a second: 40 ms of tokens a frame at first, 100 ms later."""
    text = (quote.document() * 40)[: 48 * 1024]
    _, num_bytes = follow([*cut(text[:2000], 17), *cut(text[2000:], 48)])
    assert num_bytes <= MAX_FACTOR * len(text.encode())


def test_plain_words_for_any_client() -> None:
    stream = BlockStream()
    assert Plain().take("# a", stream.feed("# a"), stream.view) == {"content": "# a"}
    assert Plain().take("\nb", stream.feed("\nb"), stream.view) == {
        "content": "\nb",
        "blocks": ["<h3>a</h3>\n"],
        "tail": "b",
    }
