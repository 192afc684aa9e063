"""Text from right to left: each block finds its own way, code and formulas never turn, and Latin text costs no byte."""

from __future__ import annotations

import pytest

from chatsite.chat.rendering.stream import BlockStream, render
from tests.unit.reading_html import Elements, assert_safe


def ways(text: str) -> list[tuple[str, str | None]]:
    """The elements of the HTML that could read their own way, and what they say."""
    found = assert_safe(render(text)).found
    kinds = set("p li ul ol h3 h4 td th table blockquote summary details code figure div".split())
    return [(tag, attributes.get("dir")) for tag, attributes in found if tag in kinds]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("نص عربي مع `Python 3.11` داخله", [("p", "auto"), ("code", "ltr")]),
        ("- אחת\n- שתיים", [("ul", "rtl"), ("li", "auto"), ("li", "auto")]),
        ("1. Python היא שפה\n2. ב", [("ol", "ltr"), ("li", "auto"), ("li", "auto")]),
        ("- א\n\n- ב", [("ul", "rtl"), ("li", "rtl"), ("p", "auto"), ("li", "rtl"), ("p", "auto")]),
        ("# כותרת", [("h3", "auto")]),
        ("> ציטוט", [("blockquote", "rtl"), ("p", "auto")]),
        ("<details><summary>ע</summary>x</details>", [("details", "rtl"), ("summary", "auto"), ("p", "auto")]),
        ("a &#x5d0;", [("p", "auto")]),
        ("a \u202eb", [("p", "auto")]),
        (
            "Plain **text**\n\n- a\n\n> b\n\n| a |\n|---|",
            [(t, None) for t in "p ul li blockquote p div table th".split()],
        ),
    ],
)
def test_a_block_with_letters_from_right_to_left_finds_its_way(
    text: str, expected: list[tuple[str, str | None]]
) -> None:
    assert ways(text) == expected


def test_a_table_has_its_columns_from_the_right() -> None:
    html = render("| א | b |\n|---|--:|\n| 1 | 2 |")
    assert '<table dir="rtl">' in html
    assert html.count(' dir="auto"') == 4


def test_a_footnote_finds_its_way() -> None:
    assert '<div class="footnote" id="fn-1" dir="rtl">' in render("[^1]: הערה")


def test_code_and_formulas_read_from_left_to_right_wherever_they_stand() -> None:
    html = render("- קוד:\n  ```py\n  x = 1\n  ```\n\nנוסחה $x^2$ וגם\n\n$$\ny\n$$")
    assert '<figure class="code" dir="ltr">' in html
    assert '<span class="math" dir="ltr">' in html
    assert '<p class="math wide" dir="ltr">' in html


@pytest.mark.parametrize("text", ["نص عربي `a` و", "- אחת\n- שת", "| א | ב |\n|---|---|\n| ג", "# אב"])
def test_a_growing_block_has_its_way_from_its_first_letter(text: str) -> None:
    stream = BlockStream()
    for char in text:
        stream.feed(char)
        look = stream.view().whole
        if any("\u0590" <= letter <= "\u06ff" for letter in Elements(look).text):
            assert 'dir="auto"' in look
