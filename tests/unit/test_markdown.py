"""Model text as HTML: what is shown, what never is, and that no text vanishes. The policy on links, images, money."""

from __future__ import annotations

import re
from html import unescape

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from chatsite.chat.rendering.stream import blocks, render
from tests.unit.reading_html import Elements, assert_safe

HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    '<iframe srcdoc="<script>1</script>">',
    "```html\n</code></pre><script>1</script>\n```",
    '```"><script>alert(1)</script>\nx\n```',
    '[a](https://ok.example "x\\" onmouseover=\\"alert(1)")',
    "[a](javascript:alert(1)) [b](jAvAsCrIpT&colon;alert(1)) <javascript:alert(1)>",
    "[a](data:text/html;base64,PHNjcmlwdD4=) ![i](data:image/svg+xml,x) [v](vbscript:x)",
    "[a]: javascript:alert(1)\n\n[a]",
    '<a href="https://x" hx-get="/logout" style="color:red" id="composer">x</a>',
    "| a |\n|:-:|\n| <b style='x'>c</b> |",
    "$<script>alert(1)</script>$ and \\[<img src=x>\\]",
    '$\\text{</annotation></math><img src=x onerror="alert(1)">}$',
    "\\(\\href{javascript:alert(1)}{x}\\) $\\style{color:red}{x}$ $\\class{x}{y}$ $\\unicode{x3c}script$",
    '[^x"><img src=x>] [^1]\n\n[^1]: <script>alert(1)</script>\n\n[^"onload=1]: x',
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_becomes_harmless(text: str) -> None:
    for end in range(len(text) + 1):
        assert_safe(render(text[:end]))


@pytest.mark.parametrize(
    ("text", "num_formulas"),
    [
        ("It costs $5 to $10, or **$750** a month.", 0),
        ("From $5-$10, $5/$10, US$ 5 and 5$.", 0),
        ("$1,000 in the bank, $2,000 in debt.", 0),
        ("If $x^2+y^2=z^2$ then $n$ is 5", 2),
        ("$5x + 3 = y$", 1),
        ("$$E = mc^2$$", 1),
        ("$$\n\\begin{pmatrix} x \\\\ y \\end{pmatrix}\n$$", 1),
        ("\\[\na\n+ b\n= c\n\\]", 1),
        ("\\[\na\n\\] and `\\(user\\)` and $\\frac{1$", 1),
        ("\\(p^*\\) and \\(q^*\\)", 2),
        ("```sh\necho $1 \\(x\\) **no** <b>\n```", 0),
        ("an open \\[ bracket and a lone $ sign", 0),
    ],
)
def test_formulas_are_told_from_money(text: str, num_formulas: int) -> None:
    assert render(text).count('class="math') == num_formulas


@pytest.mark.parametrize("source", ["\\(a_1 * b_1 * c_1 \\cdot \\{x\\}\\)", "$$\na < b & c\n$$", "$\\nonsense{x}$"])
def test_formula_keeps_its_source(source: str) -> None:
    html = render(source)
    assert Elements(html).annotations in ([source], [])
    assert source in Elements(html).text


def test_raw_html_shows_escaped() -> None:
    assert render("<h1>Hi</h1> <div cla") == "<p>&lt;h1&gt;Hi&lt;/h1&gt; &lt;div cla</p>\n"


def test_names_keep_their_underscores_and_tildes() -> None:
    html = render("Call __init__ and snake_case_name; 20~25°C, **__main__**")
    assert "__init__ and snake_case_name; 20~25°C" in html
    assert "<strong>__main__</strong>" in html


def test_strong_underscores_still_work() -> None:
    assert "<strong>Two words</strong>" in render("__Two words__")


def test_image_is_a_link_that_names_its_host() -> None:
    html = render("![chart](https://evil.example/?q=SECRET)")
    assert "<img" not in html
    assert ">chart (image at evil.example)</a>" in html


def test_relative_links_stay_text() -> None:
    assert "<a" not in render("[leave](/accounts/logout/) [x](#composer) [y](//evil.example)")


def test_link_definition_serves_later_blocks_and_is_shown() -> None:
    html = render("[one][1]\n\n[1]: https://example.org/a 'Title'\n\n[two][1]")
    assert "<p>[one][1]</p>" in html
    assert '[1]: <a href="https://example.org/a"' in html
    assert re.search(r'<a href="https://example.org/a"[^>]*title="Title">two</a>', html)


def test_code_block_names_its_language_and_keeps_its_text() -> None:
    code = 'def f(x):\n\n    return "<b>" + x  # \t é\n'
    html = render(f"```python title=x\n{code}```")
    assert html.startswith('<figure class="code" dir="ltr"><figcaption><span>python</span>')
    shown = re.search(r"<code>(.*)</code>", html, re.DOTALL)
    assert shown
    assert unescape(re.sub("<[^>]+>", "", shown[1])) == code
    assert 'class="c-k"' in html


def test_unknown_language_and_long_code_show_plain() -> None:
    assert "c-" not in re.sub("figure.*?figcaption>", "", render("```klingon\ndef x\n```"))
    assert 'class="c-' not in render("```python\n" + "def x(): pass\n" * 3000 + "```")


def test_nested_fences_respect_their_lengths() -> None:
    html = render("````md\n```py\nx = 1\n```\n````\n\nafter")
    assert html.count("<figure") == 1
    assert "```py\nx = 1\n```" in html
    assert html.endswith("<p>after</p>\n")


def test_tables_scroll_in_a_frame_and_align_by_class() -> None:
    html = render("| a | b |\n|:-:|--:|\n| 1 | `x` |")
    assert html.startswith('<div class="table" tabindex="0"><table>')
    assert '<th class="center">a</th>' in html
    assert '<td class="right"><code>x</code></td>' in html
    assert "style" not in html


def test_task_lists_show_boxes() -> None:
    html = render("- [ ] open\n- [x] done\n- [link](https://x.org)")
    assert '<li class="task">☐ open</li>' in html
    assert '<li class="task">☑ done</li>' in html


def test_a_formula_is_drawn_or_shows_its_source() -> None:
    assert "<math><semantics><mrow><msup><mi>x</mi><mn>2</mn></msup></mrow>" in render("$x^2$")
    assert '<p class="math wide" dir="ltr"><math display="block">' in render("\\[\na\n\\]")
    said = 'This formula could not be displayed: <code dir="ltr">'
    assert render("$x + \\nonsense$") == f'<p><span class="math">{said}$x + \\nonsense$</code></span></p>\n'
    assert render("\\[\n\\nonsense\n\\]") == f'<p class="math">{said}\\[\n\\nonsense\n\\]</code></p>\n'


def test_footnotes_lead_there_and_back() -> None:
    html = render("One[^1], two[^1].\n\nText.\n\n[^1]: The *note*.\n\n    More of it.\n\nAfter.", "abc")
    assert html.startswith(
        '<p>One<sup class="footnote"><a href="#fn-abc-1" id="fnref-abc-1">1</a></sup>, '
        'two<sup class="footnote"><a href="#fn-abc-1">1</a></sup>.</p>\n'
    )
    assert '<div class="footnote" id="fn-abc-1"><sup><a href="#fnref-abc-1" title="Back to the text">1</a>' in html
    assert "<p>The <em>note</em>.</p>\n<p>More of it.</p>\n</div></div>\n<p>After.</p>" in html


def test_footnotes_of_two_answers_do_not_collide() -> None:
    text = "a[^1]\n\n[^1]: b"
    ids = [re.findall(r' id="([^"]+)"', render(text, scope)) for scope in ("one", "two")]
    assert len({*ids[0], *ids[1]}) == 4


def test_a_set_of_characters_stays_readable() -> None:
    assert "[^abc]" in Elements(render("Match [^abc] or [^a-z]*.")).text
    assert "<sup" not in render("`[^abc]` and [^a b] and [^1](https://x.org)")


def test_long_code_can_be_folded_and_short_code_not() -> None:
    assert 'class="code"' in render("```py\n" + "x\n" * 30 + "```")
    long = render("```py\n" + "x\n" * 31 + "```")
    assert '<figure class="code long" dir="ltr">' in long
    assert ">Show all 31 lines</button>" in long


def test_headings_rank_below_those_of_the_page() -> None:
    assert render("# a\n\n###### f\n\nset\n===") == "<h3>a</h3>\n<h6>f</h6>\n<h3>set</h3>\n"


def test_too_deep_nesting_shows_as_text() -> None:
    html = render(">" * 200 + " deep words")
    assert "deep words" in html
    assert_safe(html)


def test_entities_and_escapes_show() -> None:
    assert render(r"a &amp; b &lt; \* \_ &copy;") == "<p>a &amp; b &lt; * _ ©</p>\n"


def test_empty_text_has_no_blocks() -> None:
    assert blocks("") == []
    assert blocks("\n \n") == []


PIECES = st.sampled_from(
    [
        *"< > & \" ' ` ``` ~~~ # ## - * + _ ** __ [ ] ( ) ! | : --- === $ $$ \\ \\[ \\] \\( \\) 1. 2) > word".split(),
        *"https://a.b javascript: x <script> onload= style= &colon; &#106;".split(),
        *(" ", "\n", "\n\n", "    ", "  ", "\t"),
    ]
)


@given(st.lists(PIECES, max_size=60).map("".join))
@example("[x](https://a.b\n'onload=')")
@settings(deadline=None, max_examples=300)
def test_any_text_renders_safe(text: str) -> None:
    assert_safe(render(text))


MARKS = st.sampled_from(
    ["- ", "1. ", "> ", "# ", "    ", "```\n", "|", "**", "\n", "\n\n", " ", "[", "]: ", "$", "\\", "  "]
)


@given(st.lists(MARKS, max_size=30), st.integers(1, 4))
@settings(deadline=None, max_examples=300)
def test_no_word_vanishes(marks: list[str], every: int) -> None:
    text = ""
    words = []
    for number, mark in enumerate(marks):
        text += mark
        if number % every == 0:
            words.append(f"w{number}w")
            text += words[-1] + " "
    shown = unescape(Elements(render(text)).text)
    assert [word for word in words if word not in shown] == []
