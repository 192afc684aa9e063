"""What the renderer of answers costs on text that was made to be dear: linear in its length, whole and as it grows.

The patterns that were dear once are always tried; all of them, in larger sizes, in the slow run.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape

import pytest

from chatsite.chat.queries.snippet import Marker
from chatsite.chat.rendering import chemistry, highlight, mathml
from chatsite.chat.rendering.stream import BlockStream, render
from tests.cost.meter import assert_bounded, cpu_seconds, filled

WHOLE_MS_PER_KB = 250.0  # several times what the dearest takes
STREAMED_MS_PER_KB = 1_200.0  # in pieces of 32 characters, looked at after each
BLOCKS = (
    *(
        ">",
        "> ",
        "- ",
        "> - ",
        "1. ",
        "- - ",
        "  - a\n",
        "- a\n - b\n",
        "- a\n\n  b\n",
        "> a\n\n",
        "- [ ] a\n",
        "# a\n",
    ),
    *("a\n=\n", "```\n", "~~~a\n", "    a\n", "a\n", "a\n\n", "a\\\n", "\n", "\t", "\r", "\0"),
    *("| a | b |\n", "|", "|a", "a|b\n-|-\n", "|||||\n", "| a |\n|---|\n"),
    *("[a]: b\n", "[a]: http://b\n", "[a]: <", "[^1]: a\n", "[^1]: a\n\n", "[^1]: - > ", "[^1]:\n"),
    *(
        "<details>",
        "<details>\n",
        "</details>\n",
        "<details>\n</details>\n",
        "<details>\n<summary>a\n",
        "- <details>\n",
    ),
    *("$$\n", "\\[a\n", "\\begin{align}\n", "\\begin{align}\n\\begin{cases}\n"),
)
INLINE = (
    *("[", "![", "]", "[]", "[a](", "[a][b]", "![a](b", "[![", "[a](b \"", "[a](<b", "[[a]](b)", "[^1]", "[^a"),
    *("*", "_", "~", "`", "*a ", "a*", "**a ", "*a_ ", "*a **b ", "_a ", "~~a", "``a `", "`a``", "*[a", "__a__"),
    *("$", "$a", "$a ", "$$a", "\\(", "\\(a ", "\\$", "$\\$", "\\", "\\begin{align}", "$`"),
    *("&", "&amp;", "&#x5d0;", "&#", "&copy", "<", "<a", "<br>", "<sub>", "<sub>a</sub>", "<sub><sup>", "</sub>"),
    *("<!--", "https://", "https://a ", "http://x.org/[a ", "http://x.org/(a ", "http://a.b/_c_", "www.", "www.a.b/("),
    *("<http://a", "mailto:a@", "注*", "**注：**", "注**“a”", "א ", "\u202ea", "a", "a ", "é", "😀"),
)  # fmt: skip


def make(pattern: str, before: str = "") -> Callable[[int], str]:
    return lambda size: before + filled(pattern, size - len(before))


def streamed(text: str) -> None:
    stream = BlockStream()
    for begin in range(0, len(text), 32):
        stream.feed(text[begin : begin + 32])
        stream.view()
    stream.finish()


DEAR_WHOLE = (
    *("a|b\n-|-\n", "- a\n - b\n", "[a]: b\n", "| a | b |\n", "a\n\n", "<details>\n", "www.", "www.a.b/(", "\\[a\n"),
    *("[^1]: a\n", "[", "![a](b", "*a **b ", "`a``", "$a", "<sub>", "> - ", "&#x5d0;", "注*", "א "),
)  # fmt: skip
DEAR_STREAMED = (
    "[",
    "*",
    "`",
    "*a_ ",
    "[^a",
    "a|b\n-|-\n",
    "<details>\n",
    "https://a ",
    "<sub>a</sub>",
    "**注：**",
    "$",
)


@pytest.mark.parametrize("pattern", DEAR_WHOLE)
def test_text_that_was_dear_costs_linear_time_whole(pattern: str) -> None:
    assert_bounded(make(pattern, "a"), render, ms_per_kb=WHOLE_MS_PER_KB, sizes=(512, 4_096))


@pytest.mark.parametrize("pattern", DEAR_STREAMED)
def test_text_that_was_dear_costs_linear_time_as_it_grows(pattern: str) -> None:
    assert_bounded(make(pattern, "a"), streamed, ms_per_kb=STREAMED_MS_PER_KB, sizes=(512, 2_048))


@pytest.mark.slow
@pytest.mark.parametrize("pattern", [*BLOCKS, *INLINE])
def test_any_text_costs_linear_time_whole(pattern: str) -> None:
    assert_bounded(make(pattern, "a"), render, ms_per_kb=WHOLE_MS_PER_KB, sizes=(4_096, 65_536))


@pytest.mark.slow
@pytest.mark.parametrize("pattern", [*BLOCKS, *INLINE])
def test_any_text_costs_linear_time_as_it_grows(pattern: str) -> None:
    assert_bounded(make(pattern, "a"), streamed, ms_per_kb=STREAMED_MS_PER_KB, sizes=(2_048, 8_192))


@pytest.mark.parametrize("before", ["```\n", "| a |\n|---|\n| ", "<details>\n\n", "- ", "> "])
def test_a_long_block_costs_linear_time_as_it_grows(before: str) -> None:
    def large(text: str) -> None:
        stream = BlockStream()
        for begin in range(0, len(text), 512):
            stream.feed(text[begin : begin + 512])
            stream.view()
        stream.finish()

    assert_bounded(make("some *words* of it. ", before), large, ms_per_kb=200, sizes=(4_096, 24_576))


DEAR_CODE = (
    *('"', "'", "(", "\\", "<", "{", "a ", "a\t", "a\n", "a<", "a(", "_", "//", "/*\n", "--", "<?", "<!--\n", "#{"),
    *("${", "\n", " ", '"\n', "a::", "class "),
)  # fmt: skip


DEAREST = {
    "c": "{{",
    "csharp": "/*\n",
    "django": "#{",
    "hcl": "_",
    "html": "<?",
    "java": "a\n",
    "make": "a(",
    "groovy": "a\n",
}


def full(pattern: str) -> str:
    """As much code as a lexer is given, in lines as long as it is given them."""
    line = pattern if "\n" in pattern or pattern == " " else filled(pattern, highlight.MAX_LINE_CHARS) + "\n"
    return filled(line, highlight.MAX_COLOURED_CHARS)


@pytest.mark.parametrize("language", DEAREST)
def test_the_dearest_code_costs_little(language: str) -> None:
    code = full(DEAREST[language])
    assert not highlight.is_dear(code)
    assert_bounded(lambda size: code[:size], lambda code: highlight.coloured(code, language), ms_per_kb=150)


@pytest.mark.slow
@pytest.mark.parametrize("language", sorted(highlight.LANGUAGES))
def test_hostile_code_costs_little_in_every_lexer(language: str) -> None:
    for pattern in DEAR_CODE:
        code = full(pattern)
        seconds = cpu_seconds(lambda code=code: highlight.coloured(code, language))
        assert seconds < 0.15 * len(code) / 1_024, pattern


def test_long_lines_and_wide_gaps_are_not_given_to_a_lexer() -> None:
    for code in ("x = 1\n" * 10_000, "x" * (highlight.MAX_LINE_CHARS + 1), "x = 1" + "\n" * 120 + "y = 2"):
        assert highlight.is_dear(code)
        assert "<span" not in highlight.coloured(code, "python")
    assert "<span" in highlight.coloured("x = 1\n", "python")


@pytest.mark.parametrize("language", sorted(highlight.LANGUAGES))
def test_every_lexer_keeps_the_code(language: str) -> None:
    code = 'x = "a" # b\n<a href="c">{1}</a>\n'
    assert unescape(re.sub("<[^>]*>", "", highlight.coloured(code, language))) == code


FORMULAS = (
    *("{", "}", "{}", "^", "x^", "x_", "x^{", "\\frac", "\\sqrt", "\\left(", "\\left(\\right)", "\\begin{matrix}"),
    *("&", "\\\\", "\\text{", "\\text{a\\_", "\\text{a\\_}", "\\ce{", "\\ce{A}", "\\ce{A->[", "x'"),
    *("\\", "\\not", "\\over", "\\ "),
)  # fmt: skip


@pytest.mark.parametrize("pattern", FORMULAS)
def test_any_formula_costs_little(pattern: str) -> None:
    def drawn(body: str) -> None:
        mathml.mathml.__wrapped__(f"$${body}$$")

    assert_bounded(make(pattern), drawn, ms_per_kb=300, sizes=(mathml.MAX_CHARS // 2, mathml.MAX_CHARS))
    assert_bounded(make(pattern), drawn, ms_per_kb=300, sizes=(65_536, 65_536))


@pytest.mark.parametrize(
    "pattern", ["A", "2", "H2O ", "->", "->[", "^", "^{", "_{", "(", "v ", "$", "\\bond{", "+", "- "]
)
def test_any_reaction_costs_linear_time(pattern: str) -> None:
    assert_bounded(lambda size: f"\\ce{{{filled(pattern, size)}}}", chemistry.spelled, ms_per_kb=50)


@pytest.mark.parametrize("pattern", ["a", "a ", "é", "A\u0301", "漢", "- ", "wor"])
def test_any_snippet_costs_linear_time(pattern: str) -> None:
    marker = Marker([(("word", "b"), True, ""), (("漢字",), False, ""), (("a",), False, ""), (("c",), False, "C++")])
    assert_bounded(make(pattern), marker.around, ms_per_kb=50)
    assert_bounded(make(pattern), marker.whole, ms_per_kb=50)
