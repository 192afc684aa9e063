"""A streamed answer equals the reloaded one: for every split the same blocks, and finished blocks never change."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from chatsite.chat.rendering.stream import BlockStream, blocks, render

DOCUMENTS = {
    "mixed": (
        "# Title\nIntro with **bold**, `code` and $x^2$.\n\n- a\n- b\n\n  still b\n    - deep\n\n1. one\n   ```py\n"
        "   x = 1\n\n   y = 2\n   ```\n2. two\n\nafter\n***\n> quote\nlazy\n\n> other\n\n"
        "| a | b |\n|---|---|\n| 1 | `x` |\n\nend"
    ),
    "setext and rules": "one\n===\ntwo\n---\nthree\n\n---\n\n- item\n---\nfour\n- x\n=\n\n* * *\n",
    "fences": "````md\n```py\nx\n```\n````\n~~~\n```\n~~~\ntext\n```js\nopen {\n\n# no heading\n- no list\n",
    "fence in list, closed by outdent": "- ```\nfoo\n```\nbar\n\n10. a\n\n  ```py\ncode\n\nmore\n  ```\nend\n",
    "lazy continuation": "> a\nb\n> c\n\nd\n- e\nf\n2. g\n\nh\n    i\n\n    code\n\n    more\nj\n",
    "definitions": "[a]: https://x.org\n'title\nmore'\n\n[a] [b]\n\n[b]: https://y.org\ntext [b]\n\n[b] and [a]\n",
    "formulas": "\\[\na\n+ b\n- c\n\\]\n\n$$\nx\n\n= y\n$$\n\nIt costs $5 or $x$.\n\\[ open\n+ still\n\nplain",
    "tables": "para\n| a | b |\n|---|:-:|\n| 1 | 2 |\nno pipe\n\n# a | b\n---|---\n| c |\n|---|\n> q\n",
    "crlf": "# a\r\ntext\r\n\r\n- b\r\n- c\r\n\r\n```\r\nx\r\n```\r\rlast\r",
    "unicode": "Zwölf 👩‍💻 Boxkämpfer\u2028line\x0bform\x0c\n\n歪 **太** 字\n\n\u00a0\n\nend\x85\n",
    "html": "<div>\n\n**x**\n</div>\n<!-- c\n\nd -->\n<script>\nalert(1)\n\n</script>\n",
    "cjk": "**注意：**这里很重要\n\n*这是斜体（带括号）。*这句子继续。请运行**`make up`**命令\n- ~~旧（的）~~新\n",
    "links": "see https://x.org/a_b_c for (https://x.org/Foo_(bar))\n见 https://x.org。 **www.x.org**\n\n- https://x.org/_a\n",
    "tags": "H<sub>2</sub>O <br>x\n\n| 1<br>2 | x<br/>y |\n|---|---|\n| <b>a</b> | <sub>b |\n",
    "details": (
        "a\n<details><summary>More *x*</summary>\n\nb **c**\n\n```\n</details>\n```\n- d\n\n</details>\nafter\n\n"
        "<details>\n<summary>One</summary>\n<details>\ntwo\n</details>\n</details>\n<details>\n\nno end\n\n- x\n"
    ),
    "environments": (
        "\\begin{align}\na &= b \\\\\n- c\n\\end{align}\n\nIn $\\left\\{ x \\right.$ \\begin{cases} a \\end{cases}\n"
        "$\\ce{2H2 + O2 -> 2H2O}$\n\\begin{align}\nopen\n\nplain"
    ),
    "both ways": ("שלום `x` עולם\n\n- אחת\n- two\n\n> العربية\n\n| א | b |\n|---|---|\n\n# \u202eאב\nabc \u2066x"),
    "emptiness": "\n\n  \n\t\na\n\n\n\n\nb\n   \n",
}


def streamed(pieces: list[str]) -> list[str]:
    stream = BlockStream()
    found: list[str] = []
    for piece in pieces:
        found += stream.feed(piece).blocks
    return found + stream.finish()


@pytest.mark.parametrize("text", DOCUMENTS.values(), ids=DOCUMENTS)
def test_every_split_in_two_gives_the_same_blocks(text: str) -> None:
    whole = blocks(text)
    for cut in range(len(text) + 1):
        assert streamed([text[:cut], text[cut:]]) == whole


@pytest.mark.parametrize("text", DOCUMENTS.values(), ids=DOCUMENTS)
def test_finished_blocks_of_every_prefix_begin_the_whole(text: str) -> None:
    whole = blocks(text)
    stream = BlockStream()
    found: list[str] = []
    for number, char in enumerate(text):
        update = stream.feed(char)
        found += update.blocks
        assert whole[: len(found)] == found
        assert BlockStream().feed(text[: number + 1]).blocks == found
        render(text[: number + 1])
    assert found + stream.finish() == whole


@pytest.mark.parametrize("text", DOCUMENTS.values(), ids=DOCUMENTS)
def test_tail_is_the_end_of_what_was_fed(text: str) -> None:
    stream = BlockStream()
    plain = text.replace("\r\n", "\n").replace("\r", "\n")
    fed = ""
    for char in text:
        fed += char
        tail = stream.feed(char).tail
        seen = fed.replace("\r\n", "\n").replace("\r", "\n")
        assert seen.endswith(tail) or seen[:-1].endswith(tail)  # a trailing return may wait for its line feed
    assert plain.endswith(stream.tail) or plain[:-1].endswith(stream.tail)
    stream.finish()
    assert stream.tail == ""


LINES = st.sampled_from(
    [
        *("a", "b c", "", "  ", "# h", "## h | i", "---", "===", "***", "- x", "* y", "+ z", "-", "1. one", "2. two"),
        *("10) ten", "  in", "    code", "   - deep", "  ```", "```", "```py", "````", "~~~", "> q", ">", "> - ql"),
        *("> ```", "| a | b |", "|---|---|", "a | b", "- | -", "[r]: http://x.org", "'t", "end'", "[r]", "\\[", "\\]"),
        *("$$", "$$ x $$", "+ m", "<div>", "\tx", "- ```", "1. ```", "  x  ", "=", "--", "- - -", "[r]:"),
        *(
            "http://y.org",
            "- [ ] t",
            "\\[ x",
            "<details>",
            "</details>",
            "<details><summary>s</summary>",
            "x</details>",
        ),
        *("  <details>", "- <details>", "\\begin{align}", "\\end{align}", "<sub>x", "**注：**字", "אב"),
    ]
)
TEXTS = st.tuples(st.lists(LINES, max_size=25), st.sampled_from(["\n", "\r\n", "\r"])).map(lambda t: t[1].join(t[0]))


@given(TEXTS, st.data())
@settings(deadline=None, max_examples=400)
def test_no_split_changes_a_block(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)])]
    assert streamed(pieces) == blocks(text)


@given(TEXTS)
@example("- a\n\n10. b\n\n  ```\nx\n\ny\n")
@settings(deadline=None, max_examples=300)
def test_finished_blocks_never_change(text: str) -> None:
    whole = blocks(text)
    for end in range(0, len(text), 3):
        found = BlockStream().feed(text[:end]).blocks
        assert whole[: len(found)] == found


def test_blocks_are_finished_as_soon_as_nothing_can_go_on_with_them() -> None:
    stream = BlockStream()
    assert stream.feed("# Title").blocks == []
    assert stream.feed("\nText\n").blocks == ["<h3>Title</h3>\n"]
    assert stream.feed("goes on\n").blocks == []
    assert stream.feed("\n").blocks == ["<p>Text\ngoes on</p>\n"]
    assert stream.feed("- item\n\n- item\n\n").blocks == []
    update = stream.feed("```py\nx = 1\n\n")
    assert len(update.blocks) == 1
    assert update.tail == "```py\nx = 1\n\n"
    assert len(stream.feed("```\n").blocks) == 1
    update = stream.feed("> quote\nnext\n\n---\n and mo")
    assert update.blocks == ["<blockquote>\n<p>quote\nnext</p>\n</blockquote>\n", "<hr>\n"]
    assert update.tail == " and mo"


def test_long_texts_cost_no_more_than_a_few_parses_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts the characters given to the parser: an open fence none, a long list a small multiple of its length."""
    from chatsite.chat.rendering import markdown as rendering_markdown
    from chatsite.chat.rendering import stream as rendering_stream

    parsed = 0
    real = rendering_markdown.starts

    def counting(source: str) -> list[rendering_markdown.Start]:
        nonlocal parsed
        parsed += len(source)
        return real(source)

    monkeypatch.setattr(rendering_stream, "starts", counting)
    fence = "```py\n" + "x = 1\n\n# no heading\n" * 2000
    BlockStream().feed(fence)
    assert parsed < 100
    for line in ("12. item with words\n", "lazy | row\n\n   - in list\n", "> quote\n", "| a | b |\n"):
        parsed = 0
        text = "1. first\n" + line * 3000
        BlockStream().feed(text)
        assert parsed < 12 * len(text)
