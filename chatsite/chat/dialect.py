"""The Markdown that answers are written in, and the HTML it becomes: CommonMark, tables, strikethrough, task lists,
footnotes, formulas.

Owns the parser, the renderer and the two walls against what a model may be talked into writing: raw HTML is off (it
shows as text), and an allow-list cleans what comes out. Links go to http, https and mailto alone, or to a footnote; an
image becomes a link that names its host, so that nothing is loaded before a person decides: the page's policy allows
images of this site alone. Nothing vanishes: even a definition of a link target is shown. Knows nothing of streaming:
`markdown` cuts text into regions and hands them over here, the unfinished one to be shown as if it ended.
Called by `markdown` on any thread; a parser keeps no state between calls.
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any
from urllib.parse import urlsplit

import nh3
from django.utils.translation import gettext as _
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from markdown_it.utils import OptionsDict

from chatsite.chat import footnotes, formulas, mathml
from chatsite.chat.highlight import MAX_LABEL_CHARS, coloured
from chatsite.chat.unfinished import GROWTH, ended, with_table

MAX_NESTING = 30  # of lists and quotes; the parser drops what lies deeper, so such a region is shown as plain text
MAX_INLINE_CHARS = 8_000  # of one paragraph; emphasis and links of hostile text cost more than linear time
LONG_CODE_LINES = 30  # more are folded by the page's script
WIDE_FORMULA_CHARS = 40  # in a line of text; it may need a box of its own to scroll in
GROWTH_HTML = "<b></b>"  # where text is added to an unfinished block; appears nowhere else

_SAFE_URL = re.compile(r"(?:https?://[^/?#]|mailto:[^/])", re.IGNORECASE)
_TASK = re.compile(r"\[([ xX])\] ")
_IDENTIFIER = re.compile(r"__[a-z][a-z0-9]*(?:_[a-z0-9]+)*__(?![A-Za-z0-9_])")
_IS_UNFINISHED = "is_unfinished"  # in the parser's env: rendered to be shown for a moment, growing
_DELIMITERS_ONLY = re.compile(r"[\[!*_~`]")

_TAGS = frozenset(
    "a b blockquote br button code em figcaption figure h3 h4 h5 h6 hr li ol p pre s div span strong sup table tbody "
    "td th thead tr ul".split()
)
_ATTRIBUTES: dict[str, set[str]] = {
    "a": {"href", "rel", "target", "class", "title", "id"},
    "button": {"type", "class", "data-act"},
    "div": {"class", "id", "tabindex"},
    "ol": {"start"},
} | {name: {"class"} for name in ("code", "figure", "li", "p", "span", "sup", "td", "th")}
_MATH_ATTRIBUTES: dict[str, set[str]] = {tag: set(names) for tag, names in mathml.ATTRIBUTES.items()} | {
    "math": {"display"},
    "semantics": set(),
    "annotation": {"encoding"},
}
_PLACE = re.compile(r"(?:fn|fnref)-[\w.-]+")


def _attribute(tag: str, name: str, value: str) -> str | None:
    """The wall's word on links and ids: none leads into the page or names a part of it, but a footnote's."""
    if name == "id":
        return value if _PLACE.fullmatch(value) else None
    if name == "href" and not _SAFE_URL.match(value):
        return value if value[:1] == "#" and _PLACE.fullmatch(value[1:]) else None
    return value


_WALL = nh3.Cleaner(
    tags=set(_TAGS | _MATH_ATTRIBUTES.keys()),
    attributes=_ATTRIBUTES | _MATH_ATTRIBUTES,
    attribute_filter=_attribute,
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
        return _figure(tokens[index].content, language, env)

    def code_block(self, tokens: Sequence[Token], index: int, options: OptionsDict, env: Any) -> str:
        return _figure(tokens[index].content, "", env)

    def text(self, tokens: Sequence[Token], index: int, options: OptionsDict, env: Any) -> str:
        return _words(tokens[index].content, env)

    def code_inline(self, tokens: Sequence[Token], index: int, options: OptionsDict, env: Any) -> str:
        return f"<code>{_words(tokens[index].content, env)}</code>"

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
        source = tokens[index].content
        drawn = mathml.mathml(source)
        wide = " wide" if drawn and len(source) > WIDE_FORMULA_CHARS else ""
        return f'<span class="math{wide}">{drawn or _words(source, env)}</span>'

    def display_formula(self, tokens: Sequence[Token], index: int, options: OptionsDict, env: Any) -> str:
        source = tokens[index].content.strip()
        drawn = mathml.mathml(source)
        return f'<p class="math{" wide" if drawn else ""}">{drawn or _words(source, env)}</p>\n'

    def footnote_reference(self, tokens: Sequence[Token], index: int, options: OptionsDict, env: Any) -> str:
        return footnotes.reference_html(tokens[index].content, env)

    def footnote_reference_open(self, tokens: Sequence[Token], index: int, options: OptionsDict, env: Any) -> str:
        return footnotes.opening_html(tokens[index].meta["label"], env)

    def footnote_reference_close(self, tokens: Sequence[Token], index: int, options: OptionsDict, env: Any) -> str:
        return footnotes.CLOSING_HTML

    def definition(self, tokens: Sequence[Token], index: int, options: OptionsDict, env: Any) -> str:
        meta = tokens[index].meta
        title = f" {meta['title']}" if meta["title"] else ""
        link = f"<a {_link_attributes(meta['url'])}>{escape(meta['url'])}</a>"
        return f'<p class="definition">[{escape(meta["label"])}]: {link}{escape(title)}</p>\n'

    def table_open(self, tokens: Sequence[Token], index: int, options: OptionsDict, env: Any) -> str:
        return '<div class="table" tabindex="0"><table>'  # one that is wider than its place is scrolled by keys

    def table_close(self, tokens: Sequence[Token], index: int, options: OptionsDict, env: Any) -> str:
        return "</table></div>\n"


def _link_attributes(url: str) -> str:
    return f'href="{escape(url)}" rel="noopener noreferrer nofollow" target="_blank"'


def _words(text: str, env: MutableMapping[str, Any]) -> str:
    shown = escape(text)
    return shown.replace(GROWTH, GROWTH_HTML) if env.get(_IS_UNFINISHED) else shown


def _figure(code: str, language: str, env: MutableMapping[str, Any]) -> str:
    is_unfinished = env.get(_IS_UNFINISHED, False)
    body = _words(code, env) if is_unfinished else coloured(code, language)
    buttons = (
        f'<span class="acts"><button type="button" class="btn tiny" data-act="wrap">{escape(_("Wrap"))}</button>'
        f'<button type="button" class="btn tiny" data-act="copy-code">{escape(_("Copy"))}</button></span>'
    )
    caption = f"<figcaption><span>{escape(language) or 'text'}</span>{buttons}</figcaption>"
    num_lines = code.count("\n") + (not code.endswith("\n"))
    long, unfold = "", ""
    if num_lines > LONG_CODE_LINES and not is_unfinished:
        long = " long"
        words = escape(_("Show all %(number)d lines") % {"number": num_lines})
        unfold = f'<button type="button" class="btn tiny unfold" data-act="unfold">{words}</button>'
    return f'<figure class="code{long}">{caption}<pre><code>{body}</code></pre>{unfold}</figure>\n'


def _parser() -> MarkdownIt:
    options = {"html": False, "maxNesting": MAX_NESTING, "inline_definitions": True}
    md = MarkdownIt("commonmark", options, renderer_cls=_Renderer).enable(["table", "strikethrough"])
    formulas.install(md)
    footnotes.install(md)
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
            _IS_UNFINISHED: True,
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
        return [_WALL.clean(f'<p class="plain">{escape(region.strip())}</p>') + "\n"]
    for token in tokens:
        _dress(token, env)
    _mark_tasks(tokens)
    _unname_empty_columns(tokens)
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
