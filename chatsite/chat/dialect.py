"""The Markdown that answers are written in, and the HTML it becomes: CommonMark, tables, strikethrough, task lists.

Owns the parser, the renderer and the two walls against what a model may be talked into writing: raw HTML is off (it
shows as text), and an allow-list cleans what comes out. Links go to http, https and mailto alone; an image becomes a
link that names its host, so that nothing is loaded before a person decides. Nothing vanishes: even a definition of a
link target is shown. Knows nothing of streaming: `markdown` cuts text into regions and hands them over here.
Called by `markdown` on any thread; a parser keeps no state between calls.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any
from urllib.parse import urlsplit

import nh3
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from markdown_it.utils import OptionsDict

from chatsite.chat import formulas
from chatsite.chat.highlight import MAX_LABEL_CHARS, coloured

MAX_NESTING = 30  # of lists and quotes; the parser drops what lies deeper, so such a region is shown as plain text
MAX_INLINE_CHARS = 8_000  # of one paragraph; emphasis and links of hostile text cost more than linear time

_SAFE_URL = re.compile(r"(?:https?://[^/?#]|mailto:[^/])", re.IGNORECASE)
_TASK = re.compile(r"\[([ xX])\] ")
_IDENTIFIER = re.compile(r"__[a-z][a-z0-9]*(?:_[a-z0-9]+)*__(?![A-Za-z0-9_])")
_DELIMITERS_ONLY = re.compile(r"[\[!*_~`]")

_TAGS = frozenset(
    "a blockquote br button code em figcaption figure h3 h4 h5 h6 hr li ol p pre s div span strong table tbody td "
    "th thead tr ul".split()
)
_ATTRIBUTES: dict[str, set[str]] = {
    "a": {"href", "rel", "target", "class", "title"},
    "button": {"type", "class", "data-act"},
    "ol": {"start"},
} | {name: {"class"} for name in ("code", "div", "figure", "li", "p", "span", "td", "th")}
_WALL = nh3.Cleaner(
    tags=set(_TAGS),
    attributes=_ATTRIBUTES,
    url_schemes={"http", "https", "mailto"},
    link_rel=None,  # the renderer sets it
    strip_comments=True,
)


@dataclass(frozen=True)
class Start:
    """Where a top-level block begins: its line, counted from 0, and for a fenced code block its fence."""

    line: int
    kind: str
    fence: str = ""


class _Renderer(RendererHTML):
    """Tokens -> HTML. Code, images, links and tables differ from the parser's own renderer."""

    def fence(self, tokens: Sequence[Token], index: int, options: OptionsDict, env: Any) -> str:
        words = tokens[index].info.split(maxsplit=1)
        language = words[0].strip("{}.")[:MAX_LABEL_CHARS] if words else ""
        return _figure(tokens[index].content, language)

    def code_block(self, tokens: Sequence[Token], index: int, options: OptionsDict, env: Any) -> str:
        return _figure(tokens[index].content, "")

    def image(self, tokens: Sequence[Token], index: int, options: OptionsDict, env: Any) -> str:
        token = tokens[index]
        source = str(token.attrs.get("src", ""))
        words = self.renderInlineAsText(token.children or [], options, env).strip() or "image"
        host = urlsplit(source).netloc.rpartition("@")[2]
        label = escape(f"{words} (image at {host})" if host else words)
        return f'<a class="image" {_link_attributes(source)}>{label}</a>'

    def link_open(self, tokens: Sequence[Token], index: int, options: OptionsDict, env: Any) -> str:
        token = tokens[index]
        title = token.attrs.get("title")
        extra = f' title="{escape(str(title))}"' if title else ""
        return f"<a {_link_attributes(str(token.attrs.get('href', '')))}{extra}>"

    def formula(self, tokens: Sequence[Token], index: int, options: OptionsDict, env: Any) -> str:
        return f'<span class="math">{escape(tokens[index].content)}</span>'

    def display_formula(self, tokens: Sequence[Token], index: int, options: OptionsDict, env: Any) -> str:
        return f'<p class="math">{escape(tokens[index].content)}</p>\n'

    def definition(self, tokens: Sequence[Token], index: int, options: OptionsDict, env: Any) -> str:
        meta = tokens[index].meta
        title = f" {meta['title']}" if meta["title"] else ""
        link = f"<a {_link_attributes(meta['url'])}>{escape(meta['url'])}</a>"
        return f'<p class="definition">[{escape(meta["label"])}]: {link}{escape(title)}</p>\n'

    def table_open(self, tokens: Sequence[Token], index: int, options: OptionsDict, env: Any) -> str:
        return '<div class="table"><table>'

    def table_close(self, tokens: Sequence[Token], index: int, options: OptionsDict, env: Any) -> str:
        return "</table></div>\n"


def _link_attributes(url: str) -> str:
    return f'href="{escape(url)}" rel="noopener noreferrer nofollow" target="_blank"'


def _figure(code: str, language: str) -> str:
    body = coloured(code, language)
    buttons = (
        '<span class="acts"><button type="button" class="btn tiny" data-act="wrap">Wrap</button>'
        '<button type="button" class="btn tiny" data-act="copy-code">Copy</button></span>'
    )
    caption = f"<figcaption><span>{escape(language) or 'text'}</span>{buttons}</figcaption>"
    return f'<figure class="code">{caption}<pre><code>{body}</code></pre></figure>\n'


def _parser() -> MarkdownIt:
    options = {"html": False, "maxNesting": MAX_NESTING, "inline_definitions": True}
    md = MarkdownIt("commonmark", options, renderer_cls=_Renderer).enable(["table", "strikethrough"])
    formulas.install(md)
    md.inline.ruler.before("emphasis", "identifier", _identifier_rule)
    md.validateLink = lambda url: bool(_SAFE_URL.match(url.strip()))  # type: ignore[method-assign]
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


def html_blocks(region: str, references: dict[str, Any]) -> list[str]:
    """The HTML of each top-level block of `region`, in order.

    `references` holds the link targets defined so far; those that `region` defines are added.
    """
    env: dict[str, Any] = {"references": references}
    tokens: list[Token] = []
    _md.block.parse(region, _md, env, tokens)
    if any(token.level >= MAX_NESTING - 2 for token in tokens):
        return [_WALL.clean(f'<p class="plain">{escape(region.strip())}</p>') + "\n"]
    for token in tokens:
        _dress(token, env)
    _mark_tasks(tokens)
    html: list[str] = []
    begin = 0
    for index, token in enumerate(tokens):
        if token.level == 0 and token.nesting <= 0:
            html.append(_WALL.clean(_md.renderer.render(tokens[begin : index + 1], _md.options, env)))
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


def _mark_tasks(tokens: list[Token]) -> None:
    """`- [ ] text` and `- [x] text` show a box instead of the brackets."""
    for item, inner, inline in zip(tokens, tokens[1:], tokens[2:]):
        if (item.type, inner.type, inline.type) != ("list_item_open", "paragraph_open", "inline"):
            continue
        first = inline.children[0] if inline.children else None
        if first is not None and first.type == "text" and (match := _TASK.match(first.content)):
            first.content = ("☐ " if match[1] == " " else "☑ ") + first.content[match.end() :]
            item.attrs["class"] = "task"
