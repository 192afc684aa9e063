"""Addresses that stand in the text as they are: `https://…`, `http://…`, `mailto:…` and `www.…` become links.

`linkify-it-py` knows what a host and a path may hold; this module decides where one may begin (not within a word,
though right behind a CJK letter) and where text takes over again: before closing punctuation, before CJK punctuation,
before the marks of Markdown. Never guesses: `README.md` and `example.com` are no links. The rule is one of a parser's
inline rules, so nothing in code, links and formulas comes here, and no underscore of an address is emphasis. An address
that still grows is text until it has ended. Called by `markdown`.
"""

from __future__ import annotations

import re

from linkify_it import LinkifyIt
from markdown_it import MarkdownIt
from markdown_it.common.utils import unescapeAll
from markdown_it.rules_inline import StateInline

from chatsite.chat.rendering.partial import ADDRESS, ADDRESS_BEGIN, CLOSING, GROWTH

MAX_CHARS = 2_000  # of an address
MAX_HOST_CHARS = 260  # with its scheme

_BEGINNING = re.compile(ADDRESS_BEGIN)
_ESCAPE = re.compile(r"\\[_*~&#()\[\]]|&amp;")
_HOST_END = re.compile(r"(?<![:/])/|[?#]")
_WWW = re.compile(r"www\.[^./?#:]+\.[^./?#:]", re.IGNORECASE)

_linkify = LinkifyIt(options={"fuzzy_link": False, "fuzzy_email": False})


def install(md: MarkdownIt) -> None:
    """Teach `md` the rule, and have plain text stop where an address may begin."""
    inline = md.inline
    inline.terminator_re = re.compile(f"{inline.terminator_re.pattern}|{ADDRESS_BEGIN}")
    inline.ruler.before("newline", "bare_link", _rule)


def _rule(state: StateInline, silent: bool) -> bool:
    if state.linkLevel or state.src[state.pos] not in "hHmMwW" or not _BEGINNING.match(state.src, state.pos):
        return False
    host = ADDRESS.match(state.src, state.pos, min(state.posMax, state.pos + MAX_HOST_CHARS + 1))
    if host is None or (len(host[0]) > MAX_HOST_CHARS and not _HOST_END.search(host[0])):
        return False
    stretch = ADDRESS.match(state.src, state.pos, min(state.posMax, state.pos + MAX_CHARS)) or host
    if state.src.startswith(GROWTH, stretch.end()):
        if not silent:
            state.append_pending(stretch[0])
        state.pos = stretch.end()
        return True
    written = _address(stretch[0])
    url = state.md.normalizeLink(_target(written))
    if not written or not state.md.validateLink(url):
        return False
    if not silent:
        token = state.push("link_open", "a", 1)
        token.attrs = {"href": url}
        token = state.push("text", "", 0)
        token.content = _plain(written)
        state.push("link_close", "a", -1)
    state.pos += len(written)
    return True


def _address(stretch: str) -> str:
    """How much of `stretch` is an address; empty: nothing."""
    is_www = stretch[:4].lower() == "www."
    if is_www and not _WWW.match(stretch):
        return ""
    prefix = "http://" if is_www else ""
    found = _linkify.match_at_start(prefix + stretch)
    if found is None:
        return ""
    return str(found.raw).removeprefix(prefix).rstrip(CLOSING)


def _target(written: str) -> str:
    plain = _plain(written)
    return f"http://{plain}" if plain[:4].lower() == "www." else plain


def _plain(written: str) -> str:
    """`written` without what Markdown needs: models escape underscores in addresses."""
    return _ESCAPE.sub(lambda match: unescapeAll(match[0]), written)
