"""Footnotes: `[^1]` in the text, `[^1]: words` where they are written, each a link to the other.

A reference is a link whether or not its definition has come, since what was shown never changes; a definition stays
where it stands, as a block of its own. Ids carry the scope that the caller names (a message), so that two answers on
one page can both have a first footnote. Two rules are added to a parser, the words' own blocks are the plugin's work.
Knows nothing of HTML's walls: labels are letters, digits, dots, dashes and underscores alone. Called by `markdown`.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from html import escape
from typing import Any

from django.utils.translation import gettext as _
from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline
from mdit_py_plugins.footnote.index import footnote_def

COUNTS = "num_references"  # in the parser's env: label -> references so far
SCOPE = "scope"
OPEN, CLOSE = "footnote_reference_open", "footnote_reference_close"

_LABEL = r"\[\^([\w.-]{1,40})\]"
_REFERENCE = re.compile(rf"{_LABEL}(?![(\[:])")
_DEFINITION = re.compile(rf"{_LABEL}:")
_IS_NUMBER = re.compile(r"\d+")


def install(md: MarkdownIt) -> None:
    """Teach `md` both rules."""
    md.block.ruler.before("reference", "footnote", _block_rule, {"alt": ["paragraph", "reference"]})
    md.inline.ruler.before("link", "footnote", _inline_rule)


def reference_html(label: str, env: MutableMapping[str, Any]) -> str:
    """The mark in the text. The first of a label is where its definition leads back to."""
    counts = env.setdefault(COUNTS, {})
    counts[label] = counts.get(label, 0) + 1
    place = f' id="{_id("fnref", label, env)}"' if counts[label] == 1 else ""
    shown = label if _IS_NUMBER.fullmatch(label) else f"[^{label}]"  # what looks like one may be a set of characters
    return f'<sup class="footnote"><a href="#{_id("fn", label, env)}"{place}>{escape(shown)}</a></sup>'


def opening_html(label: str, env: MutableMapping[str, Any], attributes: str = "") -> str:
    back = f'<a href="#{_id("fnref", label, env)}" title="{escape(_("Back to the text"))}">{escape(label)}</a>'
    return f'<div class="footnote" id="{_id("fn", label, env)}"{attributes}><sup>{back}</sup><div>\n'


CLOSING_HTML = "</div></div>\n"


def _id(kind: str, label: str, env: MutableMapping[str, Any]) -> str:
    scope = env.get(SCOPE) or ""
    return escape(f"{kind}-{scope}-{label}" if scope else f"{kind}-{label}")


def _block_rule(state: StateBlock, first: int, last: int, silent: bool) -> bool:
    begin = state.bMarks[first] + state.tShift[first]
    if not _DEFINITION.match(state.src, begin, state.eMarks[first]):
        return False
    return footnote_def(state, first, last, silent)


def _inline_rule(state: StateInline, silent: bool) -> bool:
    match = _REFERENCE.match(state.src, state.pos, state.posMax)
    if match is None or state.linkLevel > 0:
        return False
    if not silent:
        token = state.push("footnote_reference", "sup", 0)
        token.content = match[1]
    state.pos = match.end()
    return True
