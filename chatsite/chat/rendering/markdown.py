"""The Markdown that answers are written in, and the HTML it becomes: CommonMark, tables, strikethrough, task lists,
footnotes, formulas, bare links, a few HTML tags; emphasis beside CJK text, and text from right to left.

Owns the parser and what is done with its tokens. Two walls stand against what a model may be talked into writing: raw
HTML is off (but for a few tags without attributes it shows as text), and an allow-list cleans what comes out. Nothing
vanishes: even a definition of a link target is shown. Knows nothing of streaming: `markdown` cuts text into regions and
hands them over here, the unfinished one to be shown as if it ended. Every region costs time linear in its length: what
would cost more is cut off by length and shown as plain text.
Called by `markdown` on any thread; a parser keeps no state between calls.
"""

from __future__ import annotations

import re
from collections import ChainMap
from dataclasses import dataclass
from html import escape
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token

from chatsite.chat.rendering import bare_links, cjk, details, footnotes, formulas, html_tags, sanitizer, text_direction
from chatsite.chat.rendering.partial import GROWTH, ended, with_table
from chatsite.chat.rendering.renderer import GROWTH_HTML, IS_UNFINISHED, Renderer

MAX_NESTING = 30  # of lists and quotes; the parser drops what lies deeper, so such a region is shown as plain text
MAX_INLINE_CHARS = 8_000  # of one paragraph; emphasis and links of hostile text cost more than linear time

_TASK = re.compile(r"\[([ xX])\] ")
_IDENTIFIER = re.compile(r"__[a-z][a-z0-9]*(?:_[a-z0-9]+)*__(?![A-Za-z0-9_])")
_DELIMITERS_ONLY = re.compile(r"[\[!*_~`]")


@dataclass(frozen=True)
class Start:
    """Where a top-level block begins: its line, counted from 0, and for a fenced code block its fence."""

    line: int
    kind: str
    fence: str = ""


def _parser() -> MarkdownIt:
    options = {"html": False, "maxNesting": MAX_NESTING, "inline_definitions": True}
    md = MarkdownIt("commonmark", options, renderer_cls=Renderer)
    md.inline = cjk.InlineParser()
    md.configure("commonmark", options).enable(["table", "strikethrough"])
    for extension in (formulas, footnotes, details, html_tags, bare_links):
        extension.install(md)
    md.inline.ruler.before("emphasis", "identifier", _identifier_rule)
    md.validateLink = lambda url: bool(sanitizer.SAFE_URL.match(url.strip()))  # type: ignore[method-assign]
    return md


def _identifier_rule(state: StateInline, silent: bool) -> bool:
    """`__init__` is a name, not strong text: its underscores stay."""
    match = _IDENTIFIER.match(state.src, state.pos, state.posMax)
    if match is None or (state.pos and state.src[state.pos - 1].isalnum()):
        return False
    if not silent:
        state.pending += match[0]
    state.pos = match.end()
    return True


_md = _parser()
_LEAVES = frozenset({"inline", "fence", "code_block", "display_formula", "hr"})


def starts(source: str) -> list[Start]:
    """Where the top-level blocks of `source` begin, as far as its lines tell; more lines may follow.

    Costs time linear in `source`; nothing inside of paragraphs is looked at.
    """
    tokens: list[Token] = []
    _md.block.parse(source, _md, {"references": {}, formulas.OPEN_END: True}, tokens)
    return [
        Start(token.map[0], token.type, token.markup if token.type == "fence" else "")
        for token in tokens
        if token.level == 0 and token.nesting >= 0 and token.map
    ]


class Known:
    """What blocks of one answer tell later ones: link targets, and how often each footnote was named."""

    def __init__(self, scope: str = "") -> None:
        """`scope` makes the ids of footnotes unique on a page: letters, digits and dashes."""
        self.scope = scope
        self._references: dict[str, Any] = {}
        self._counts: dict[str, int] = {}

    def env(self) -> dict[str, Any]:
        """For a region that is finished: what it defines is kept."""
        return {"references": self._references, footnotes.COUNTS: self._counts, footnotes.SCOPE: self.scope}

    def passing_env(self) -> dict[str, Any]:
        """For a region that is shown for a moment: what it defines is forgotten."""
        return {
            "references": ChainMap({}, self._references),
            footnotes.COUNTS: ChainMap({}, self._counts),
            footnotes.SCOPE: self.scope,
            formulas.OPEN_END: True,
            IS_UNFINISHED: True,
        }


def html_blocks(region: str, known: Known) -> list[str]:
    """The HTML of each top-level block of `region`, in order; what it defines is added to `known`."""
    env = known.env()
    tokens: list[Token] = []
    _md.block.parse(region, _md, env, tokens)
    return _rendered(region, tokens, env)


def unfinished_html(region: str, known: Known) -> tuple[str, bool]:
    """The HTML of a region that goes on, with `GROWTH_HTML` where plain text would be added; and whether to hide it."""
    region = with_table(region.replace(GROWTH, "\ufffd"))
    env = known.passing_env()
    tokens: list[Token] = []
    _md.block.parse(region, _md, env, tokens)
    hides = _end_here(tokens, is_line_whole=region.endswith("\n"))
    html = "".join(_rendered(region, tokens, env)).replace(GROWTH, "")
    return (html if GROWTH_HTML in html else html + GROWTH_HTML), hides


def _end_here(tokens: list[Token], *, is_line_whole: bool) -> bool:
    """Mark where the last block grows, and close what is open there; whether more text is to be hidden."""
    leaves = (t for t in reversed(tokens) if t.type in _LEAVES and (t.type != "inline" or t.content.strip()))
    last = next(leaves, None)
    if last is None or last.type == "hr":
        return False
    if last.type == "inline":
        shown = ended(last.content)
        last.content = shown.text + GROWTH + shown.closers
        return shown.hides
    if last.type == "display_formula":
        last.content += "" if formulas.is_closed(last.content) else GROWTH
    else:
        last.content = (last.content if is_line_whole else last.content.removesuffix("\n")) + GROWTH
    return False


def _rendered(region: str, tokens: list[Token], env: dict[str, Any]) -> list[str]:
    if any(token.level >= MAX_NESTING - 2 for token in tokens):
        return [sanitizer.clean(f'<p class="plain">{escape(region.strip())}</p>') + "\n"]
    for token in tokens:
        _dress(token, env)
    _mark_tasks(tokens)
    _unname_empty_columns(tokens)
    html: list[str] = []
    begin = 0
    for index, token in enumerate(tokens):
        if token.level == 0 and token.nesting <= 0:
            text_direction.give(tokens[begin : index + 1])
            html.append(sanitizer.clean(_md.renderer.render(tokens[begin : index + 1], _md.options, env)))
            begin = index + 1
    return html


def _dress(token: Token, env: dict[str, Any]) -> None:
    """Parse a paragraph's text, lower headings below the page's own, turn alignment styles into classes."""
    if token.type == "inline":
        token.children = []
        if len(token.content) > MAX_INLINE_CHARS and len(_DELIMITERS_ONLY.findall(token.content)) > 200:
            text = Token("text", "", 0)
            text.content = token.content
            token.children.append(text)
        else:
            _md.inline.parse(token.content, _md, env, token.children)
        for child in token.children:
            if child.type == "text_special":  # an escape or entity
                child.type = "text"
    elif token.type in ("heading_open", "heading_close"):
        token.tag = f"h{min(6, int(token.tag[1]) + 2)}"
    elif token.type in ("th_open", "td_open") and (style := token.attrs.pop("style", None)):
        token.attrs["class"] = str(style).rpartition(":")[2]


def _unname_empty_columns(tokens: list[Token]) -> None:
    """A heading without words names nothing: it is a cell."""
    for begin, inline, end in zip(tokens, tokens[1:], tokens[2:]):
        if begin.type == "th_open" and not inline.content.strip():
            begin.tag = end.tag = "td"


def _mark_tasks(tokens: list[Token]) -> None:
    """`- [ ] text` and `- [x] text` show a box instead of the brackets."""
    for item, inner, inline in zip(tokens, tokens[1:], tokens[2:]):
        if (item.type, inner.type, inline.type) != ("list_item_open", "paragraph_open", "inline"):
            continue
        first = inline.children[0] if inline.children else None
        if first is not None and first.type == "text" and (match := _TASK.match(first.content)):
            first.content = ("☐ " if match[1] == " " else "☑ ") + first.content[match.end() :]
            item.attrs["class"] = "task"
