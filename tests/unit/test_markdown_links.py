"""Addresses that stand in the text: where they end, where none begins, and that they are as safe as written ones."""

from __future__ import annotations

import re

import pytest

from chatsite.chat.rendering.stream import BlockStream, render
from tests.unit.reading_html import Elements, assert_safe


def links(text: str) -> list[tuple[str, str]]:
    """Address and words of each link."""
    html = render(text)
    assert_safe(html)
    return re.findall(r'<a href="([^"]*)"[^>]*>(.*?)</a>', html)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("see https://example.com/a_b_c for more", "https://example.com/a_b_c"),
        ("(https://en.example.org/wiki/Foo_(bar))", "https://en.example.org/wiki/Foo_(bar)"),
        ("见 https://example.com。", "https://example.com"),
        ("请看https://example.com/a，然后", "https://example.com/a"),
        ("（https://example.com/路径）", "https://example.com/路径"),
        ("「https://example.com」を", "https://example.com"),
        ("Go to https://example.com/a?b=1#c.", "https://example.com/a?b=1#c"),
        ("https://example.com, then", "https://example.com"),
        ("“https://example.com”", "https://example.com"),
        ("*https://example.com/x*", "https://example.com/x"),
        ("**https://example.com/x_y_**。", "https://example.com/x_y"),
        ("_https://example.com/__init__.py", "https://example.com/__init__.py"),
        ("https://example.com/a*b*c", "https://example.com/a*b*c"),
        ("https://example.com[^1]", "https://example.com"),
        ("http://localhost:8000/x", "http://localhost:8000/x"),
        ("- https://example.com", "https://example.com"),
        ("| https://example.com | b |\n|---|---|", "https://example.com"),
        ("mailto:a@example.com!", "mailto:a@example.com"),
        ("https://example.com/\u202egpj.exe", "https://example.com/"),
    ],
)
def test_a_bare_address_is_a_link_that_ends_where_the_text_goes_on(text: str, address: str) -> None:
    assert [words for _, words in links(text) if not words.isdigit()] == [address]
    assert "<em>" not in render(text) or text.startswith("*")


def test_www_leads_to_the_web() -> None:
    assert links("www.example.com") == [("http://www.example.com", "www.example.com")]


def test_escapes_of_an_address_are_taken_for_what_they_mean() -> None:
    assert links(r"https://x.org/a\_b?c=1&amp;d=2") == [
        ("https://x.org/a_b?c=1&amp;d=2", "https://x.org/a_b?c=1&amp;d=2")
    ]


@pytest.mark.parametrize(
    "text",
    [
        "`https://x.org`",
        "```\nhttps://x.org\n```",
        "    https://x.org",
        "$https://x.org$",
        "README.md file.py example.com a.b.c 1.2.3",
        "xhttps://x.org",
        "ahttp://x.org",
        "javascript://x.org/%0aalert(1)",
        "ftp://x.org file:///etc/passwd vbscript:x data:text/html,x",
        "https:// http:///x www. www.x mailto: mailto:x",
        "a@example.com",
    ],
)
def test_no_link_begins_in_code_in_words_or_by_guessing(text: str) -> None:
    assert "<a " not in render(text)


def test_an_address_within_a_written_link_is_its_words() -> None:
    assert links("[https://x.org](https://y.org)") == [("https://y.org", "https://x.org")]
    assert links("[see https://x.org now](https://y.org)") == [("https://y.org", "see https://x.org now")]


@pytest.mark.parametrize("text", ["see https://example.com/_a_b now, or www.example.com.", "**https://a.example**。x"])
def test_a_growing_address_is_text_until_it_has_ended(text: str) -> None:
    stream = BlockStream()
    for end, char in enumerate(text, 1):
        stream.feed(char)
        look = stream.view().whole
        assert_safe(look)
        shown = Elements(look)
        for words in re.findall(r"<a [^>]*>(.*?)</a>", look):
            assert not text[:end].endswith(words), text[:end]
        assert "em" not in [tag for tag, _ in shown.found]
    assert "".join(stream.finish()) == render(text)
