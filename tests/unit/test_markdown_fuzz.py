"""Documents of a seeded grammar through the renderer: all safe, well formed, one element a block, however they come."""

from __future__ import annotations

import random

import pytest

from chatsite.chat.rendering.stream import BlockStream, blocks
from tests.unit.reading_html import assert_safe
from tests.unit.test_formulas import HOSTILE as FORMULAS
from tests.unit.test_markdown import HOSTILE as DOCUMENTS

NUM_QUICK, NUM_ALL = 300, 10_000

HTML = (
    "<script>alert(1)</script>|<img src=x onerror=alert(1)>|<svg/onload=alert(1)>|<a href=javascript:alert(1)>x</a>|"
    "</code></pre><script>1</script>|<!--|-->|<![CDATA[|<style>*{}</style>|<math><mtext></mtext><mglyph><style>|"
    '<iframe srcdoc="<script>1</script>">|<b>|</b>|<p|\x00|\ufdd0|&lt;script&gt;|&#60;img src=x&#62;|<?php|<div cla'
).split("|")
URLS = (
    "https://x.org|http://x|javascript:alert(1)|JaVaScRiPt&colon;alert(1)|data:text/html,<script>|vbscript:x|//x.org|"
    "/logout|#fn-1|#composer|mailto:a@b.c|https://x.org/\"onload='x'|file:///etc/passwd|https://x?a=1&b=<c>"
).split("|")
TAGS = (
    "<br>|<br/>|<sub>|</sub>|<sup>|</sup>|<kbd>|</kbd>|<b>|</b>|<u>|</u>|<mark>|</mark>|<details>|</details>|<summary>|"
    "</summary>|<details><summary>|</summary></details>|<BR />|<su|</|<details open>|<sub class=x>|<sub></sub>"
).split("|")
BARE = (
    "https://x.org/a_b_c|(https://x.org/Foo_(bar))|见 https://x.org。|www.x.org|https://x.org/_a_*b*|http://[x|http://a@b.c|"
    "https://x.org/\"onload='x'|https://x.org/<script>|mailto:a@b.c|HTTPS://X.ORG|https://|www.|https://x.org/\u202egpj"
).split("|")
FOREIGN = (
    "注意：|（带括号）。|“引用”|「重要」|字|です|가(나)|ﾊﾝ｡|葛\U000e0100|。\ufe00|שלום|العربية|\u202e|\u202d|\u2066|\u2069|\u200f|"
    "\u061c|١٢٣|(שלום)|abc עברית 3.11|\u202eabc\u202c"
).split("|")
WORDS = "word|two words|__init__|snake_case|$5|20~25°C|a*b*c|😀|👩‍💻|العربية|\u202e|\u2028|a|, |. |! |\\*|&copy;".split(
    "|"
)


def inline(rng: random.Random, depth: int = 0) -> str:
    def inner() -> str:
        return inline(rng, depth + 1) if depth < 3 else rng.choice(WORDS)

    def mark() -> str:
        return rng.choice(["*", "**", "_", "__", "~~", "***", "`", "``"])

    kind = rng.randrange(16)
    if kind == 12:
        return rng.choice(TAGS) + inner() + rng.choice(TAGS)
    if kind == 13:
        return (
            rng.choice(["", " ", "(", "**", "_", "「"]) + rng.choice(BARE) + rng.choice(["", " ", ")", "**", "。", "_"])
        )
    if kind >= 14:
        m = rng.choice(["", "*", "**", "~~", "_", "***"])
        return rng.choice(FOREIGN) + m + rng.choice(FOREIGN) + m + rng.choice([*FOREIGN, inner()])
    if kind < 4:
        return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 4)))
    if kind == 4:
        return mark() + inner() + mark()
    if kind == 5:
        m = mark()
        return m + inner() + m
    if kind == 6:
        title = rng.choice(["", f' "{inner()}"'])
        return f"{rng.choice(['', '!'])}[{inner()}]({rng.choice(URLS)}{title})"
    if kind == 7:
        return f"[{inner()}][{rng.choice('abc')}] [^{rng.choice('12ab')}]"
    if kind == 8:
        opener, closer = rng.choice([("$", "$"), ("$$", "$$"), ("\\(", "\\)"), ("\\[", "\\]"), ("$", "")])
        return opener + "".join(rng.choice(FORMULAS) for _ in range(rng.randint(1, 6))) + closer
    if kind == 9:
        return rng.choice(HTML)
    if kind == 10:
        return f"<{rng.choice(URLS)}>"
    return inner() + rng.choice(["", " ", "\n", "  \n", "\\\n"]) + inner()


def block(rng: random.Random, depth: int = 0) -> str:
    kind = rng.randrange(15)
    if kind == 13 and depth < 3:
        opener = rng.choice(
            ["<details>", "<details>\n", "<details><summary>x</summary>", "<details>\n<summary>", "- <details>"]
        )
        return (
            opener
            + rng.choice(["", inline(rng)])
            + "\n\n"
            + document(rng, depth + 1, 2)
            + rng.choice(["</details>\n", ""])
        )
    if kind == 14:
        name = rng.choice(["align", "align*", "cases", "equation", "pmatrix"])
        body = "".join(rng.choice(FORMULAS) for _ in range(rng.randint(1, 8)))
        return f"\\begin{{{name}}}\n{body}\n" + rng.choice([f"\\end{{{name}}}\n", "", "\\end{align}\n"])
    if kind < 3:
        return inline(rng) + "\n"
    if kind == 3:
        return "#" * rng.randint(1, 7) + " " + inline(rng) + "\n"
    if kind == 4 and depth < 4:
        return indented(document(rng, depth + 1, 2), rng.choice(["- ", "* ", "1. ", "10) ", "- [ ] ", "- [x] "]))
    if kind == 5 and depth < 4:
        return indented(document(rng, depth + 1, 2), "> ", "> ")
    if kind == 6:
        fence = rng.choice(["```", "~~~", "````", "`````"])
        info = rng.choice(["", "py", "html", '"><script>', "js title=<x>", "diff"])
        body = rng.choice([inline(rng), document(rng, 4, 2), "x = 1\n" * rng.randint(1, 40)])
        return f"{fence}{info}\n{body}\n" + rng.choice([fence + "\n", fence + "\n", "", "```\n"])
    if kind == 7:
        num_cells = rng.randint(1, 4)
        rows = [
            "| " + " | ".join(inline(rng, 2) for _ in range(rng.randint(1, 5))) + " |" for _ in range(rng.randint(1, 4))
        ]
        return "\n".join([rows[0], "|" + rng.choice(["---|", ":-:|", "--:|"]) * num_cells, *rows[1:]]) + "\n"
    if kind == 8:
        return f"[{rng.choice(['a', 'b', '^1', '^2', '^a', '^<x>'])}]: {rng.choice([rng.choice(URLS), inline(rng)])}\n"
    if kind == 9:
        return rng.choice(["---", "***", "===", "- - -", "-", "+", "1.", "|", ">", "\t", "    code", "\\["]) + "\n"
    if kind == 10:
        opener, closer = rng.choice([("$$", "$$"), ("\\[", "\\]")])
        body = "".join(rng.choice(FORMULAS) for _ in range(rng.randint(1, 12)))
        return f"{opener}\n{body}\n{rng.choice([closer, ''])}\n"
    if kind == 11:
        return rng.choice(HTML) + inline(rng) + "\n"
    return rng.choice(DOCUMENTS) + "\n"


def document(rng: random.Random, depth: int = 0, num_blocks: int = 6) -> str:
    parts = (block(rng, depth) + rng.choice(["", "\n", "\n\n"]) for _ in range(rng.randint(1, num_blocks)))
    return "".join(parts)


def indented(text: str, first: str, rest: str = "") -> str:
    lines = text.split("\n")
    following = rest or " " * len(first)
    return "\n".join([first + lines[0], *((following + line) if line else line for line in lines[1:])]) + "\n"


def check(seed: int) -> None:
    rng = random.Random(seed)
    text = document(rng)
    whole = blocks(text, "s")
    for html in whole:
        assert assert_safe(html).num_roots == 1, seed
    stream, found, begin = BlockStream("s"), list[str](), 0
    while begin < len(text):
        end = begin + rng.randint(1, max(2, len(text) // 5))
        found += stream.feed(text[begin:end]).blocks
        assert found == whole[: len(found)], seed
        look = stream.view().whole
        assert_safe(look)
        late = BlockStream("s")
        late.feed(text[:end])
        assert late.view().whole == look, seed
        begin = end
    assert found + stream.finish() == whole, seed


@pytest.mark.parametrize("part", range(3))
def test_documents_are_safe_however_they_come(part: int) -> None:
    for seed in range(part * NUM_QUICK // 3, (part + 1) * NUM_QUICK // 3):
        check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_ten_thousand_documents_are_safe_however_they_come(part: int) -> None:
    share = NUM_ALL // 20
    for seed in range(NUM_QUICK + part * share, NUM_QUICK + (part + 1) * share):
        check(seed)
