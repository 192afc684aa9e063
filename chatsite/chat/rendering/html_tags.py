"""The few HTML tags that models write within a line and mean: `<br>`, `<sub>`, `<kbd>` and their like, as they are.

An opening tag counts when its closing one follows within the same text, the same emphasis and the same link; otherwise
both are what they look like, text. So what comes out is balanced, whatever comes in, and half an answer too. All other
HTML stays visible. Two rules are added to a parser: one finds tags, one pairs them when emphasis is known. `details` is
a block, see `details`. Called by `markdown`.
"""

from __future__ import annotations

from markdown_it import MarkdownIt
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token

from chatsite.chat.rendering.partial import TAG

MAX_OPEN = 8  # tags within each other
_MEANINGS = {"b": "strong", "i": "em", "del": "s"}
_KIND = "tag"


def install(md: MarkdownIt) -> None:
    """Teach `md` both rules."""
    md.inline.ruler.before("autolink", "tag", _rule)
    md.inline.ruler2.before("fragments_join", "pair_tags", _pair)


def _rule(state: StateInline, silent: bool) -> bool:
    match = TAG.match(state.src, state.pos, state.posMax)
    if match is None:
        return False
    if not silent:
        name = match["name"]
        if name is None:
            state.push("line_break", "br", 0)
        else:
            token = state.push(_KIND, name.lower(), 0)
            token.content = match[0]
            token.meta["closes"] = bool(match["slash"])
    state.pos = match.end()
    return True


class _Scope:
    """The tags that are open within one emphasis, link or text."""

    def __init__(self) -> None:
        self.open: list[Token] = []
        self.names: set[str] = set()


def _pair(state: StateInline) -> None:
    scopes = [_Scope()]
    for token in state.tokens:
        if token.type == _KIND:
            _take(token, scopes[-1], sum(len(scope.open) for scope in scopes[-MAX_OPEN:]))
        elif token.nesting > 0:
            scopes.append(_Scope())
        elif token.nesting < 0:
            _give_up(scopes.pop().open)
            if not scopes:
                scopes.append(_Scope())
    for scope in scopes:
        _give_up(scope.open)


def _take(token: Token, scope: _Scope, num_open: int) -> None:
    if not token.meta["closes"]:
        if token.tag in scope.names or num_open >= MAX_OPEN:  # none is meant to lie within its own kind
            _give_up([token])
            return
        scope.open.append(token)
        scope.names.add(token.tag)
        return
    if token.tag not in scope.names:
        _give_up([token])
        return
    while (opener := scope.open.pop()).tag != token.tag:
        scope.names.remove(opener.tag)
        _give_up([opener])
    scope.names.remove(token.tag)
    opener.nesting, token.nesting = 1, -1
    opener.content = token.content = ""
    opener.tag = token.tag = _MEANINGS.get(token.tag, token.tag)


def _give_up(tokens: list[Token]) -> None:
    for token in tokens:
        token.type, token.tag = "text", ""
