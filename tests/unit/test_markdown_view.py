"""How the unfinished end of an answer is shown: by the text alone, safe at every prefix, without loose delimiters."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatsite.chat.rendering import markdown as rendering_markdown
from chatsite.chat.rendering import stream as rendering_stream
from chatsite.chat.rendering.stream import BlockStream
from tests.unit.reading_html import Elements, assert_safe
from tests.unit.test_markdown_stream import DOCUMENTS, TEXTS


def seen(text: str) -> str:
    """The HTML of the tail after all of `text` came at once."""
    stream = BlockStream()
    stream.feed(text)
    return stream.view().whole


def words(text: str) -> str:
    return Elements(seen(text)).text.strip()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("A **bold", "<p>A <strong>b<b>old</b></strong></p>\n"),
        ("A **bold**", "<p>A <strong>b<b>old</b></strong></p>\n"),
        ("A **bold** te", "<p>A <strong>bold</strong><b> te</b></p>\n"),
        ("A *", "<p>A<b> </b></p>\n"),
        ("some `co", "<p>some <code>c<b>o</b></code></p>\n"),
        ("a [link](https://exam", "<p>a link<b></b></p>\n"),
        ("an ![image](https://x", "<p>an <b></b></p>\n"),
        ("see <https://exam", "<p>see <b></b></p>\n"),
        ("text\n-", "<p>text<b></b></p>\n"),
        ("text\n- i", "<p>text</p>\n<ul>\n<li>i<b></b></li>\n</ul>\n"),
        ("## Ti", "<h4>T<b>i</b></h4>\n"),
        ("> q", "<blockquote>\n<p>q<b></b></p>\n</blockquote>\n"),
        ("- [", ""),
        ("- [x] d", '<ul>\n<li class="task">☑ d<b></b></li>\n</ul>\n'),
        ("```", ""),
        ("if a < b and 20~25", "<p>if a &lt; b and 20~2<b>5</b></p>\n"),
        ("snake_case_na", "<p>snake_case_n<b>a</b></p>\n"),
        ("12", ""),
        ("12. ", ""),
        ("12.5", "<p>1<b>2.5</b></p>\n"),
        ("<div cla", "<p>&lt;d<b>iv cla</b></p>\n"),
        ("half [^1", "<p>half <b></b></p>\n"),
    ],
)
def test_a_dangling_end_looks_whole(text: str, shown: str) -> None:
    assert seen(text) == shown


@pytest.mark.parametrize("text", ["```py\nx = **1", "~~~\n[a](b", "- a\n  ```\n  **x `y"])
def test_nothing_is_completed_inside_code(text: str) -> None:
    code = seen(text).partition("<pre><code>")[2]
    assert code.replace("<b>", "").replace("</b>", "").startswith(text.split("\n", 2)[-1].strip())
    assert "<strong>" not in code


def test_open_fence_is_code_that_grows_and_its_marks_are_not_seen() -> None:
    stream = BlockStream()
    stream.feed("```py\n")
    html = stream.view().html
    assert html.startswith('<figure class="code" dir="ltr"><figcaption><span>py</span>')
    stream.feed("x = 1\n\n# no heading\n``")
    assert stream.view() == rendering_stream.View(html, "x = 1\n\n# no heading\n")
    assert len(stream.feed("`\n").blocks) == 1
    assert stream.view().whole == ""


def test_table_is_one_from_its_first_line() -> None:
    for text in ("| one | tw", "| one | two |\n", "| one | two |\n|--", "| one | two |\n|---|---|\n| 1"):
        assert seen(text).startswith('<div class="table" tabindex="0"><table><thead>\n<tr>\n<th>one'), text
        assert "|" not in words(text)


def test_words_of_a_table_grow_in_their_own_cell() -> None:
    assert seen("| a | b |\n|---|---|\n| one | two wor").endswith(
        "<td>t<b>wo wor</b></td>\n</tr>\n</tbody>\n</table></div>\n"
    )


def test_unclosed_formula_grows_as_its_source_and_is_drawn_at_its_end() -> None:
    assert words("$$\nx^2\n+ y\n") == "$$\nx^2\n+ y"
    assert "<math" not in seen("$$\nx^2\n")
    assert "<math" in seen("a \\(x^2\\) b")


@pytest.mark.parametrize("text", DOCUMENTS.values(), ids=DOCUMENTS)
def test_every_prefix_is_safe_and_the_same_for_whoever_comes_then(text: str) -> None:
    stream = BlockStream()
    for end, char in enumerate(text, 1):
        stream.feed(char)
        look = stream.view().whole
        assert_safe(look)
        assert look == seen(text[:end])


@given(TEXTS, st.data())
@settings(deadline=None, max_examples=150)
def test_no_split_changes_the_look(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    stream = BlockStream()
    for begin, end in zip([0, *cuts], cuts):
        stream.feed(text[begin:end])
        assert stream.view().whole == seen(text[:end])


def test_what_a_tail_defines_is_kept_only_when_it_is_finished() -> None:
    stream = BlockStream()
    stream.feed("[a]: https://x.org\n'ti")
    stream.view()
    html = "".join(stream.feed("tle'\n\n[a] [^1] [^1]\n\n").blocks)
    assert 'title="title"' in html
    assert html.count(' id="fnref-1"') == 1


def test_long_tails_cost_a_few_renderings_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts the characters given to the renderer, for a view after every 16 characters."""
    rendered = 0
    real = rendering_markdown.unfinished_html

    def counting(region: str, known: rendering_markdown.Known) -> tuple[str, bool]:
        nonlocal rendered
        rendered += len(region)
        return real(region, known)

    monkeypatch.setattr(rendering_stream, "unfinished_html", counting)
    monkeypatch.setattr("chatsite.chat.rendering.sanitizer.clean", lambda html: html)
    for line, bound in (("- item with **words** in it\n", 16), ("x = 1\n", 1), ("Words and **words** and words. ", 16)):
        rendered = 0
        text = ("```py\n" if bound == 1 else "- first\n") + line * (12_000 // len(line))
        stream = BlockStream()
        for begin in range(0, len(text), 16):
            stream.feed(text[begin : begin + 16])
            stream.view()
        assert rendered < bound * len(text)
