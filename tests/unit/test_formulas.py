"""LaTeX as MathML: what is drawn, what shows its source instead, and that no formula costs much or reaches out."""

from __future__ import annotations

import re
import time
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatsite.chat.rendering.mathml import ATTRIBUTES, MAX_CHARS, mathml
from chatsite.chat.rendering.stream import BlockStream, render
from tests.unit.reading_html import Elements


@pytest.mark.parametrize(
    "source",
    [
        r"$x^2+y^2=z^2$",
        r"\(\frac{a}{b}\)",
        r"$$\begin{pmatrix} x \\ y \end{pmatrix}$$",
        r"\[\begin{aligned}a &= b \\ c &< d\end{aligned}\]",
        "$$\n\\begin{align*}\na &= b\n\\end{align*}\n$$",
        r"$$f(x) = \begin{cases} 1 & \text{if } x > 0 \\ 0 & \text{otherwise} \end{cases}$$",
        r"\[\sum_{i=0}^{n} i = \frac{n(n+1)}{2}\]",
        r"\[\int_{-\infty}^{\infty} e^{-x^2}\,dx = \sqrt{\pi}\]",
        r"$\mathbb{R}^n, \vec{v}, \hat{x}, \boxed{42}, \operatorname{rank} A$",
        r"$\left(\frac{1}{2}\right)^{-1}$",
        r"$P(A \mid B) \approx 50\%$",
        r"\[ a = b \\ c = d \]",
        r"$x \in \{1, 2\}$",
    ],
)
def test_usual_formulas_are_drawn_and_say_their_source(source: str) -> None:
    drawn = mathml(source)
    assert drawn is not None
    assert ElementTree.fromstring(drawn).findtext(".//annotation") == source


@pytest.mark.parametrize(
    "source",
    [
        r"$\frac{1$",
        r"$\nonsense{x}$",
        r"$\text{a \nonsense}$",
        r"$a & b$",
        r"$x}$",
        r"\(\left( x\)",
        "$$ $$",
        "$$",
        r"$\href{javascript:alert(1)}{x}$",
        r"$\class{x}{y} \style{color: red}{z}$",
        r"$\newcommand{\a}{\a\a}\a$",
        r"$\def\a{xx}\def\b{\a\a}\def\c{\b\b}\c$",
        r"$\rule{1000em}{1000em}$",
        r"$\unicode{x3c}$",
        "$" + "x" * (MAX_CHARS + 1) + "$",
        "$" + "{" * 200 + "}" * 200 + "$",
        "$" + r"\sqrt" * 200 + "x$",
        "$" + "x^{" * 30 + "}" * 30 + "$",
    ],
)
def test_what_is_not_told_for_sure_shows_its_source(source: str) -> None:
    assert mathml(source) is None


@pytest.mark.parametrize(
    "body",
    [r"\hspace{900em}x", r"\kern{-50em}x", r"\raise{90em}{x}", r"\color{red}{x}", r"\llap{zzz}", r"\mspace{9999mu}x"],
)
def test_nothing_reaches_out_of_the_formula(body: str) -> None:
    drawn = (mathml(f"${body}$") or "").partition("<annotation")[0]
    assert not re.search(r"9\d|-50|-1width|red", drawn)


def test_words_of_a_formula_are_words() -> None:
    drawn = mathml(r"$\text{<script>&lt;&#x3c;img src=x>}$")
    assert drawn is not None
    assert [element.tag for element in ElementTree.fromstring(drawn).iter()] == [
        "math",
        "semantics",
        "mrow",
        "mtext",
        "annotation",
    ]


HOSTILE = [
    *("{", "}", "x^", "x_", "^", "_", "'", "&", "\\\\", "\\frac", "\\sqrt", "\\sqrt[", "\\left(", "\\right)", "\\over"),
    *("\\binom", "\\root", "\\begin{matrix}", "\\end{matrix}", "\\text{", "\\mathbf{", "\\limits", "\\sum", "\\not"),
    *(
        "\\begin{array}{c|c}",
        "\\hline",
        "\\substack{",
        "\\overset",
        "\\underbrace{",
        "\\operatorname{",
        "\\displaystyle",
    ),
    *(
        "\\genfrac",
        "\\sideset",
        "\\prescript",
        "\\skew",
        "\\big",
        "\\color",
        "\\verb|",
        "%",
        "\\of",
        "\\middle",
        "\\tag",
    ),
    *(
        "x",
        "1",
        "1.5",
        "<",
        ">",
        '"',
        "&lt;",
        "&#x3c;",
        "\\",
        "\\#",
        "\\{",
        "#1",
        "\n",
        " ",
        "é",
        "😀",
        "\\xrightarrow[",
    ),
]


@pytest.mark.parametrize("piece", HOSTILE)
def test_repeated_nonsense_costs_little(piece: str) -> None:
    body = (piece * MAX_CHARS)[:MAX_CHARS]
    begin = time.thread_time()
    mathml.__wrapped__(f"$${body}$$")
    mathml.__wrapped__(f"$${body}{'}' * body.count('{')}$$"[:MAX_CHARS])
    assert time.thread_time() - begin < 2


@given(st.lists(st.sampled_from(HOSTILE), max_size=40).map("".join), st.sampled_from(["$", "$$", "\\(", "\\["]))
@settings(deadline=None, max_examples=500)
def test_any_formula_is_well_formed_and_of_known_elements(body: str, opener: str) -> None:
    closer = {"\\(": "\\)", "\\[": "\\]"}.get(opener, opener)
    drawn = mathml(f"{opener}{body}{closer}")
    if drawn is None:
        return
    for element in ElementTree.fromstring(drawn).iter():
        if element.tag not in ("math", "semantics", "annotation"):
            assert element.attrib.keys() <= ATTRIBUTES[element.tag].keys()


@pytest.mark.parametrize(
    "source",
    [
        r"$\left\{ x \right.$",
        r"$\ce{2H2 + O2 -> 2H2O}$",
        r"$\ce{SO4^2-} + \ce{Fe^{3+}}$",
        r"\(\ce{CaCO3(s) <=>[\Delta] CaO(s) + CO2(g) ^}\)",
        r"$\text{a\_b}$",
        r"$\text{50\% \& \#1 \{x\}}$",
        "\\begin{align}\na &= b \\\\\nc &= d\n\\end{align}",
        *(
            f"\\begin{{{name}}}\na \\\\\n- b\n\\end{{{name}}}"
            for name in "align* equation gather cases dcases matrix pmatrix bmatrix split multline eqnarray".split()
        ),
        "\\begin{alignat}{2}\na &= b\n\\end{alignat}",
        "\\begin{array}{cc}\na & b\n\\end{array}",
    ],
)
def test_formulas_are_found_in_text_and_drawn(source: str) -> None:
    html = render(f"{source}\n")
    assert Elements(html).annotations == [source]
    in_line = source.replace("\n", " ")
    assert Elements(render(f"Before {in_line} after\n")).annotations == [in_line]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (r"\text{a\_b}", ["a_b"]),
        (r"\text{\{x\} \$5 \% \& \#}", ["{x}\u00a0$5\u00a0%\u00a0&\u00a0#"]),
        (r"\ce{H2O}", ["H", "2", "O"]),
        (r"\ce{NH4+}", ["N", "H", "4", "+"]),
        (r"\ce{^{14}_{6}C}", ["14", "6", "C"]),
        (r"\ce{2H2 + O2 -> 2H2O}", ["2", "H", "2", "+", "O", "2", "→", "2", "H", "2", "O"]),
        (r"\ce{CuSO4*5H2O}", ["Cu", "S", "O", "4", "·", "5", "H", "2", "O"]),
        (r"\ce{A ->[heat] B v}", ["A", "→", "heat", "B", "↓"]),
    ],
)
def test_reactions_and_signs_in_words_say_what_they_mean(body: str, words: list[str]) -> None:
    drawn = mathml(f"${body}$")
    assert drawn is not None
    row = ElementTree.fromstring(drawn)[0]
    found = [element.text for element in row[0].iter() if element.text and element.text.strip()]
    assert sorted(found) == sorted(words)


@pytest.mark.parametrize("source", [r"$x + \nonsense$", r"\(\ce{漢}\)", r"$\ce{H2}O\href{javascript:alert(1)}{x}$"])
def test_what_cannot_be_drawn_says_so_in_its_line(source: str) -> None:
    html = render(f"so {source} there")
    assert f"so This formula could not be displayed: {source} there" in Elements(html).text
    assert "<math" not in html


def test_a_growing_formula_says_nothing_of_the_kind() -> None:
    stream = BlockStream()
    stream.feed("\\begin{align}\na &= \\nonsense\n")
    assert "could not" not in stream.view().whole
    assert "could not" in render("\\begin{align}\na &= \\nonsense\n\\end{align}\n")


def test_amounts_of_money_with_braces_are_none() -> None:
    assert "<math" not in render("It costs $5 {net} or $10 \\{gross\\}.")
