"""Code of an answer -> coloured HTML, by classes alone (the page's policy allows no inline style).

Knows nothing of Markdown. A language that is not listed, code that is too long, or a lexer that does not give back
exactly the text it was given: all show plain.

A lexer's patterns look ahead, some of them to the end of the line, over all blank space or over any number of words,
and cost the square of that on hostile text. So the list holds lexers that were measured, code with a very long line or
a very large gap shows plain, as does long code, and the patterns that read on over any number of words, which find the
names of methods, are taken out of their lexers.
"""

from __future__ import annotations

import re
from functools import lru_cache
from html import escape
from typing import Any

from pygments.lexer import Lexer
from pygments.lexers import find_lexer_class_by_name
from pygments.token import Comment, Generic, Keyword, Literal, Name, Number, Operator, String, Token

MAX_COLOURED_CHARS = 10_000
MAX_LINE_CHARS = 500
_GAP = re.compile(r"(?<!\s)\s{100}")
_ANY_WORDS = r"\s+)+?)"  # in a pattern: it reads over words as long as there are some
MAX_LABEL_CHARS = 40

LANGUAGES = frozenset(
    "bash c clojure cmake console cpp csharp css dart diff django docker elixir erlang fsharp go graphql groovy "
    "haskell hcl html http ini java javascript json julia kotlin latex less lua make matlab nginx nix objective-c "
    "ocaml perl php powershell prolog protobuf python r ruby rust scala scheme scss shell solidity sql swift "
    "terraform toml typescript vim xml yaml zig".split()
)
ALIASES = dict(
    pair.split("=")
    for pair in (
        "c++=cpp c#=csharp cs=csharp dockerfile=docker golang=go hs=haskell js=javascript jsx=javascript kt=kotlin "
        "makefile=make objc=objective-c pl=perl ps1=powershell py=python python3=python rb=ruby rs=rust sh=bash "
        "shell-session=console tex=latex tf=terraform ts=typescript tsx=typescript yml=yaml zsh=bash"
    ).split()
)

_CLASSES = (
    (Comment, "c"), (Keyword, "k"), (Operator.Word, "k"), (String, "s"), (Number, "m"), (Literal, "m"),
    (Name.Function, "f"), (Name.Class, "f"), (Name.Decorator, "d"), (Name.Tag, "k"), (Name.Attribute, "f"),
    (Name.Builtin, "b"), (Name.Exception, "b"), (Name.Constant, "b"), (Name.Variable, "d"),
    (Generic.Inserted, "i"), (Generic.Deleted, "x"), (Generic.Heading, "k"), (Generic.Prompt, "c"),
)  # fmt: skip


def coloured(code: str, language: str) -> str:
    """`code` as HTML: escaped, and coloured when `language` is known; the text is never changed."""
    lexer = _lexer(ALIASES.get(language.lower(), language.lower()))
    if lexer is None or is_dear(code):
        return escape(code, quote=False)
    pieces = [(_class_of(kind), text) for kind, text in lexer.get_tokens(code)]
    if "".join(text for _, text in pieces) != code:
        return escape(code, quote=False)
    html: list[str] = []
    for name, text in _joined(pieces):
        shown = escape(text, quote=False)
        html.append(f'<span class="c-{name}">{shown}</span>' if name else shown)
    return "".join(html)


def is_dear(code: str) -> bool:
    """Whether a lexer could take long over `code`."""
    if len(code) > MAX_COLOURED_CHARS:
        return True
    return max(map(len, code.split("\n"))) > MAX_LINE_CHARS or _GAP.search(code) is not None


@lru_cache(maxsize=128)
def _lexer(language: str) -> Lexer | None:
    if language not in LANGUAGES:
        return None
    known = find_lexer_class_by_name(language)
    tokens = getattr(known, "tokens", None)
    if _ANY_WORDS in str(tokens):
        known = type(known.__name__, (known,), {"tokens": _without_dear(tokens)})
    return known(stripnl=False, ensurenl=False)


def _without_dear(tokens: Any) -> Any:
    """A lexer's rules without those that read over any number of words; `tokens` nests dicts, lists and rules."""
    if isinstance(tokens, dict):
        return {name: _without_dear(rules) for name, rules in tokens.items()}
    return [rule for rule in tokens if not (isinstance(rule, tuple) and _ANY_WORDS in str(rule[0]))]


@lru_cache(maxsize=1024)
def _class_of(kind: type[Token]) -> str:
    return next((name for known, name in _CLASSES if kind in known), "")


def _joined(pieces: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Neighbours of one class become one; white space joins whatever stands before it."""
    joined: list[tuple[str, str]] = []
    for name, text in pieces:
        if joined and (joined[-1][0] == name or text.isspace()):
            joined[-1] = (joined[-1][0], joined[-1][1] + text)
        else:
            joined.append((name, text))
    return joined
