"""Emphasis beside Chinese, Japanese and Korean text, by the public amendment; all other text as CommonMark has it."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it.parser_inline import ParserInline

from chatsite.chat.rendering import markdown
from chatsite.chat.rendering.stream import render


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("**注意：**这里很重要", "<strong>注意：</strong>这里很重要"),
        ("*这是斜体文字（带括号）。*这句子继续。", "<em>这是斜体文字（带括号）。</em>这句子继续。"),
        ("请运行**`make up`**命令", "请运行<strong><code>make up</code></strong>命令"),
        ("~~删除（旧的）~~之后", "<s>删除（旧的）</s>之后"),
        ("这是**“引用”**的话", "这是<strong>“引用”</strong>的话"),
        ("これは**「重要」**です", "これは<strong>「重要」</strong>です"),
        ("カタカナ**（注）**ト", "カタカナ<strong>（注）</strong>ト"),
        ("ﾊﾝｶｸ**｢x｣**ﾃﾞｽ", "ﾊﾝｶｸ<strong>｢x｣</strong>ﾃﾞｽ"),
        ("**이 용어(This term)**를 강조", "<strong>이 용어(This term)</strong>를 강조"),
        ("**스크립트(script)**라고", "<strong>스크립트(script)</strong>라고"),
        ("**ＡＢＣ！**ＤＥＦ", "<strong>ＡＢＣ！</strong>ＤＥＦ"),
        ("**(x)**\U00020bb7野家", "<strong>(x)</strong>\U00020bb7野家"),
        ("**\u845b\U000e0100(x)**\u845b\U000e0100**(y)**\u845b", None),
        ("字。\ufe00**(a)**字", "字。\ufe00<strong>(a)</strong>字"),
        ("**“\ufe01字”\ufe01**字", "<strong>“\ufe01字”\ufe01</strong>字"),
        ("***注意：***这里", "<em><strong>注意：</strong></em>这里"),
        ("中文_强调（x）_中文", "中文_强调（x）_中文"),
    ],
)
def test_emphasis_works_beside_cjk_punctuation_and_quotes(text: str, html: str | None) -> None:
    shown = render(text)
    if html is None:
        assert shown.count("<strong>") == 2
    else:
        assert shown == f"<p>{html}</p>\n"


PIECES = st.sampled_from(
    [
        *("*", "**", "***", "_", "__", "~~", "~", "`"),
        *("a", "word", "Zoë", "Ж", "α", "א", "ب", "1", "x_y", "é"),
        *(" ", "\n", "\u00a0", "\u2003"),
        *(
            ".",
            ",",
            "(",
            ")",
            '"',
            "'",
            "!",
            "«",
            "»",
            "„",
            "“",
            "”",
            "’",
            "—",
            "…",
            "€",
            "£",
            "×",
            "😀",
            "❤\ufe0f",
            "↔",
        ),
    ]
)


@given(st.lists(PIECES, max_size=25).map("".join))
@example("**a”**b")
@example("a**“b”**c")
@settings(deadline=None, max_examples=400)
def test_text_without_cjk_is_read_as_commonmark_has_it(text: str) -> None:
    shown = render(text)
    ours = markdown._md.inline
    plain = ParserInline()
    plain.ruler, plain.ruler2, plain.terminator_re = ours.ruler, ours.ruler2, ours.terminator_re
    markdown._md.inline = plain
    try:
        assert render(text) == shown
    finally:
        markdown._md.inline = ours


def test_the_rule_is_ours_alone() -> None:
    from markdown_it import MarkdownIt

    assert MarkdownIt().render("**注意：**这里") == "<p>**注意：**这里</p>\n"
