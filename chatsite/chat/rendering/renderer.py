"""Tokens of an answer -> HTML, by the library's renderer where that will do: code, images, links and formulas differ.

An image becomes a link that names its host, so that nothing is loaded before a person decides: the page's policy allows
images of this site alone. Knows how a block looks that still grows: `GROWTH_HTML` stands where text will be added.
Called by `markdown`; a renderer keeps no state between calls.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from html import escape
from typing import Any
from urllib.parse import urlsplit

from django.utils.translation import gettext as _
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import OptionsDict

from chatsite.chat.rendering import details, footnotes, formulas, mathml
from chatsite.chat.rendering.highlight import MAX_LABEL_CHARS, coloured
from chatsite.chat.rendering.partial import GROWTH

LONG_CODE_LINES = 30  # more are folded by the page's script
WIDE_FORMULA_CHARS = 40  # in a line of text; it may need a box of its own to scroll in
GROWTH_HTML = "<b></b>"  # where text is added to an unfinished block; appears nowhere else
IS_UNFINISHED = "is_unfinished"  # in the parser's env: rendered to be shown for a moment, growing


class Renderer(RendererHTML):
    def fence(self, tokens: Sequence[Token], index: int, options: OptionsDict, env: Any) -> str:
        words = tokens[index].info.split(maxsplit=1)
        language = words[0].strip("{}.")[:MAX_LABEL_CHARS] if words else ""
        return _figure(tokens[index].content, language, env)

    def code_block(self, tokens: Sequence[Token], index: int, options: OptionsDict, env: Any) -> str:
        return _figure(tokens[index].content, "", env)

    def text(self, tokens: Sequence[Token], index: int, options: OptionsDict, env: Any) -> str:
        return _words(tokens[index].content, env)

    def code_inline(self, tokens: Sequence[Token], index: int, options: OptionsDict, env: Any) -> str:
        return f"<code{_direction(tokens[index])}>{_words(tokens[index].content, env)}</code>"

    def line_break(self, tokens: Sequence[Token], index: int, options: OptionsDict, env: Any) -> str:
        return "<br>"

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
        if drawn is None:
            return f'<span class="math">{_undrawn(source, env)}</span>'
        wide = " wide" if len(source) > WIDE_FORMULA_CHARS else ""
        return f'<span class="math{wide}" dir="ltr">{drawn}</span>'

    def display_formula(self, tokens: Sequence[Token], index: int, options: OptionsDict, env: Any) -> str:
        source = tokens[index].content.strip()
        drawn = mathml.mathml(source)
        if drawn is None:
            return f'<p class="math">{_undrawn(source, env)}</p>\n'
        return f'<p class="math wide" dir="ltr">{drawn}</p>\n'

    def footnote_reference(self, tokens: Sequence[Token], index: int, options: OptionsDict, env: Any) -> str:
        return footnotes.reference_html(tokens[index].content, env)

    def footnote_reference_open(self, tokens: Sequence[Token], index: int, options: OptionsDict, env: Any) -> str:
        return footnotes.opening_html(tokens[index].meta["label"], env, _direction(tokens[index]))

    def footnote_reference_close(self, tokens: Sequence[Token], index: int, options: OptionsDict, env: Any) -> str:
        return footnotes.CLOSING_HTML

    def definition(self, tokens: Sequence[Token], index: int, options: OptionsDict, env: Any) -> str:
        meta = tokens[index].meta
        title = f" {meta['title']}" if meta["title"] else ""
        link = f"<a {_link_attributes(meta['url'])}>{escape(meta['url'])}</a>"
        return f'<p class="definition">[{escape(meta["label"])}]: {link}{escape(title)}</p>\n'

    def details_open(self, tokens: Sequence[Token], index: int, options: OptionsDict, env: Any) -> str:
        shown = " open" if tokens[index].meta[details.IS_OPEN] else ""  # what is being written is seen
        return f"<details{shown}{_direction(tokens[index])}>\n"

    def table_open(self, tokens: Sequence[Token], index: int, options: OptionsDict, env: Any) -> str:
        # One that is wider than its place is scrolled by keys.
        return f'<div class="table" tabindex="0"><table{_direction(tokens[index])}>'

    def table_close(self, tokens: Sequence[Token], index: int, options: OptionsDict, env: Any) -> str:
        return "</table></div>\n"


def _direction(token: Token) -> str:
    way = token.attrs.get("dir")
    return f' dir="{way}"' if way else ""


def _link_attributes(url: str) -> str:
    return f'href="{escape(url)}" rel="noopener noreferrer nofollow" target="_blank"'


def _words(text: str, env: MutableMapping[str, Any]) -> str:
    shown = escape(text)
    return shown.replace(GROWTH, GROWTH_HTML) if env.get(IS_UNFINISHED) else shown


def _undrawn(source: str, env: MutableMapping[str, Any]) -> str:
    """The source in place of a formula, and that it is one; while it grows, the source alone."""
    shown = f'<code dir="ltr">{_words(source, env)}</code>'
    if env.get(IS_UNFINISHED) and not formulas.is_closed(source):
        return shown
    words = _("This formula could not be displayed:")
    return f"{escape(words)} {shown}"


def _figure(code: str, language: str, env: MutableMapping[str, Any]) -> str:
    is_unfinished = env.get(IS_UNFINISHED, False)
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
    return f'<figure class="code{long}" dir="ltr">{caption}<pre><code>{body}</code></pre>{unfold}</figure>\n'
