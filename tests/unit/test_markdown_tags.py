"""The few HTML tags that are meant as such, `details`, and that nothing about them unbalances a page."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatsite.chat.rendering import details
from chatsite.chat.rendering.stream import BlockStream, blocks, render
from tests.unit.reading_html import Elements, assert_safe


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("H<sub>2</sub>O", "<p>H<sub>2</sub>O</p>\n"),
        ("x<sup>2</sup>", "<p>x<sup>2</sup></p>\n"),
        ("a<br>b<br/>c<BR />d", "<p>a<br>b<br>c<br>d</p>\n"),
        ("<kbd>Ctrl</kbd> <mark>m</mark> <u>u</u>", "<p><kbd>Ctrl</kbd> <mark>m</mark> <u>u</u></p>\n"),
        ("<b>b</b> <i>i</i> <del>d</del>", "<p><strong>b</strong> <em>i</em> <s>d</s></p>\n"),
        ("<sub>*a*</sub>", "<p><sub><em>a</em></sub></p>\n"),
        ("`<sub>x</sub>`", "<p><code>&lt;sub&gt;x&lt;/sub&gt;</code></p>\n"),
    ],
)
def test_the_few_tags_are_meant(text: str, html: str) -> None:
    assert render(text) == html


def test_a_line_breaks_within_a_cell() -> None:
    html = render("| a | b |\n|---|---|\n| 1<br>2 | x<br/>y |")
    assert "<td>1<br>2</td>" in html
    assert "<td>x<br>y</td>" in html


@pytest.mark.parametrize(
    "text",
    [
        '<sub class="x">a</sub>',
        "<sub onclick=alert(1)>a</sub>",
        "<div>a</div>",
        "<sub>a",
        "a</sub>",
        "<sub>a</sup>",
        "*<sub>a*</sub>",
        "[<sub>a](https://x.org)</sub>",
        "<script>x</script>",
        "<br class=x>",
        "<details open>\n\nx\n\n</details>",
        "<details>\n\nx",
    ],
)
def test_all_else_stays_visible_text(text: str) -> None:
    html = render(text)
    assert_safe(html)
    assert "&lt;" in html
    assert {tag for tag, _ in Elements(html).found} <= {"p", "em", "a"}


def test_details_hold_markdown_with_blank_lines() -> None:
    text = "<details>\n<summary>More *here*</summary>\n\nA **b**\n\n- c\n\n```\n</details>\n```\n\n</details>\nAfter"
    found = blocks(text)
    assert found[0].startswith("<details>\n<summary>More <em>here</em></summary>\n<p>A <strong>b</strong></p>\n<ul>")
    assert "&lt;/details&gt;" in found[0]
    assert found[0].endswith("</details>\n")
    assert found[1:] == ["<p>After</p>\n"]


@pytest.mark.parametrize(
    ("text", "num_details"),
    [
        ("<details><summary>a</summary>b</details>", 1),
        ("<details><summary>a</summary>\nb\n</details>\n<details><summary>c</summary>d</details>", 2),
        ("<details>\n<summary>a</summary>\n<details>\n<summary>b</summary>\nc\n</details>\n</details>", 2),
        ("<details><details>a</details></details>", 1),
        ("- x\n  <details>\n  <summary>a</summary>\n\n  b\n  </details>\n- y", 1),
        ("> <details>\n> a\n> </details>", 1),
        ("text\n<details>a</details>", 1),
        ("<details>\n" * 3 + "</details>\n" * 3, 3),
        ("</details>", 0),
        ("<summary>a</summary>", 0),
    ],
)
def test_details_are_found_wherever_a_block_may_be(text: str, num_details: int) -> None:
    html = render(text)
    assert_safe(html)
    assert html.count("<details>") == html.count("<summary>") == html.count("</details>") == num_details


def test_details_without_an_end_are_text_and_hold_up_nothing() -> None:
    stream = BlockStream()
    stream.feed("<details>\n")
    assert stream.view().whole.startswith('<details open="">')
    found: list[str] = []
    for number in range(2 * details.MAX_CHARS // 20):
        found += stream.feed(f"paragraph no {number:05}\n\n").blocks
        assert len(stream.tail) < details.MAX_CHARS + 200
    assert len(found) > details.MAX_CHARS // 20
    assert found[0] == "<p>&lt;details&gt;\nparagraph no 00000</p>\n"


TAGS = st.sampled_from(
    [
        *("<details>", "</details>", "<summary>", "</summary>", "<sub>", "</sub>", "<sup>", "</sup>", "<b>", "</b>"),
        *("<br>", "<su", "<", "*", "**", "_", "`", "[", "](https://x.org)", "~~", "a", "b c", "注", "א", "$x$", "|"),
        *("\n", "\n\n", "\n- ", "\n  ", "\n> ", "\n```\n", "\n| a |\n|---|\n| ", "# ", "https://x.org/a_b ", "\u202e"),
    ]
)


@given(st.lists(TAGS, max_size=40).map("".join), st.data())
@settings(deadline=None, max_examples=300)
def test_no_mixture_unbalances_a_block_and_no_split_changes_one(text: str, data: st.DataObject) -> None:
    whole = blocks(text)
    for html in whole:
        assert assert_safe(html).num_roots == 1
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    stream, found = BlockStream(), list[str]()
    for begin, end in zip([0, *cuts], [*cuts, len(text)]):
        found += stream.feed(text[begin:end]).blocks
        look = stream.view().whole
        assert_safe(look)
        late = BlockStream()
        late.feed(text[:end])
        assert late.view().whole == look
    assert found + stream.finish() == whole


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("H<sub>2", ["sub"]),
        ("H<su", []),
        ("H<sub>", []),
        ("| a |\n|---|\n| 1<b", ["div", "table", "thead", "tr", "th", "tbody", "tr", "td"]),
    ],
)
def test_half_a_tag_is_not_seen(text: str, shown: list[str]) -> None:
    stream = BlockStream()
    stream.feed(text)
    found = Elements(stream.view().whole)
    assert [tag for tag, _ in found.found if tag not in ("p", "b")] == shown
    assert "<" not in found.text
