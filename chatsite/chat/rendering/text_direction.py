"""Which way a block of an answer reads: Arabic, Hebrew and their like from right to left, code and formulas never.

The page reads from left to right, and so does a block that holds no other letter and no control of direction: it says
nothing. In a block that does, each paragraph, item, heading and cell finds its own way (`dir="auto"`), which also keeps
what it holds from reordering the page around it; what has such blocks inside cannot, since a browser looks for the
first letter outside of them, so it is told. Called by `markdown` with the tokens of one top-level block.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from unicodedata import bidirectional

from markdown_it.token import Token

_TURNING = re.compile(
    "[\u0590-\u08ff\u200e\u200f\u202a-\u202e\u2066-\u2069\ufb1d-\ufdcf\ufdf0-\ufdff\ufe70-\ufefc"
    "\U00010800-\U00010fff\U0001e800-\U0001efff]"
)
_OWN_WAY = frozenset({"paragraph_open", "heading_open", "th_open", "td_open", "summary_open"})
_TOLD = frozenset(
    {
        "bullet_list_open",
        "ordered_list_open",
        "blockquote_open",
        "table_open",
        "details_open",
        "footnote_reference_open",
    }
)
_STRONG = re.compile(r"[^\W\d_]")


def give(tokens: Sequence[Token]) -> None:
    """Write the directions of one top-level block to its tokens, if it needs any."""
    if not any(_TURNING.search(text) for token in tokens for text in _words(token)):
        return
    waiting: list[Token] = []  # that hold blocks, and no letter so far
    for index, token in enumerate(tokens):
        if token.type in _OWN_WAY and not token.hidden:
            token.attrs["dir"] = "auto"
        elif token.type in _TOLD:
            waiting.append(token)
        elif token.type == "list_item_open":
            inner = tokens[index + 1]
            if inner.type == "paragraph_open" and inner.hidden:
                token.attrs["dir"] = "auto"
            else:
                waiting.append(token)
        for child in token.children or ():
            if child.type == "code_inline":
                child.attrs["dir"] = "ltr"
        if waiting and (way := _first_way(token)):
            for outer in waiting:
                outer.attrs["dir"] = way
            waiting.clear()


def _words(token: Token) -> Iterator[str]:
    if token.type == "inline":
        for child in token.children or ():
            yield child.content
            yield from (inner.content for inner in child.children or ())
    else:
        yield token.content


def _first_way(token: Token) -> str:
    if token.type != "inline":
        return ""
    for child in token.children or ():
        if child.type == "text":
            for match in _STRONG.finditer(child.content):
                way = bidirectional(match[0])
                if way in ("L", "R", "AL"):
                    return "ltr" if way == "L" else "rtl"
    return ""
