"""Tool calls written as Python: where such a block ends, and which calls it makes. Nothing of it is ever run.

Owns the reading of Python text: strings are followed character by character, so that a block's end inside a string is
no end; a whole block is parsed into a syntax tree, of which only calls of known tools with literal arguments count.
`output.tool_calls` uses it, in the thread of one generation.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

MAX_BLOCK_CHARS = 100_000

_ESCAPES = frozenset("\\'\"abfnrtvxNuU01234567\r\n")
_PREFIX = re.compile(r"(?<![A-Za-z0-9_])([A-Za-z]{1,2})$")
_FAULTS = (SyntaxError, ValueError, TypeError, RecursionError, MemoryError)


@dataclass(frozen=True)
class Statement:
    """One statement of a block: a call, or (`problem`) none that can be made. `arguments` are `"key": value` each."""

    name: str
    arguments: tuple[str, ...] = ()
    problem: str = ""
    is_unknown: bool = False  # calls a function that is no tool
    lines: tuple[int, int] = (0, 0)  # of the block, from 1, both included


class _State(Enum):
    CODE = auto()
    COMMENT = auto()
    OPENING = auto()  # one or two quotes: it may yet be three
    STRING = auto()
    ESCAPE = auto()


class PythonBlock:
    """The text of one block up to `closer`, which is no part of it. `text` is as written, `source` as parsed."""

    def __init__(self, closer: str) -> None:
        self._text: list[str] = []
        self._source: list[str] = []
        self._tail = ""  # of the text, as long as what closes it
        self._closer = closer
        self._state = _State.CODE
        self._quote = ""
        self._num_quotes = 0  # in a row
        self._is_triple = False
        self._is_raw = False

    @property
    def text(self) -> str:
        return "".join(self._text)

    @property
    def source(self) -> str:
        return "".join(self._source)

    def feed(self, char: str) -> bool:
        """Take `char`; whether the block has ended with it."""
        self._text.append(char)
        self._tail = (self._tail + char)[-len(self._closer) :] if self._closer else ""
        if self._state is _State.ESCAPE:
            # Python keeps the backslash of an escape that it does not know, but warns; said twice it is the same.
            if char not in _ESCAPES and not self._is_raw:
                self._source.append("\\")
            self._state = _State.STRING
        else:
            self._step(char)
        self._source.append(char)
        if self._state in (_State.CODE, _State.COMMENT) and self._tail == self._closer:
            del self._text[-len(self._closer) :]  # no escape is in it: as many pieces as characters
            del self._source[-len(self._closer) :]
            return True
        return False

    def _step(self, char: str) -> None:
        if self._state is _State.OPENING:
            if char == self._quote:
                self._num_quotes += 1
                if self._num_quotes == 3:
                    self._state, self._is_triple, self._num_quotes = _State.STRING, True, 0
                return
            is_empty = self._num_quotes == 2
            self._state, self._num_quotes = (_State.CODE if is_empty else _State.STRING), 0
        if self._state is _State.STRING:
            self._in_string(char)
        elif char == "\n":
            self._state = _State.CODE
        elif self._state is _State.CODE and char in "'\"":
            prefix = _PREFIX.search("".join(self._source[-3:]))
            self._is_raw = prefix is not None and "r" in prefix[1].lower()
            self._state, self._quote, self._num_quotes, self._is_triple = _State.OPENING, char, 1, False
        elif self._state is _State.CODE and char == "#":
            self._state = _State.COMMENT

    def _in_string(self, char: str) -> None:
        if char == "\\":
            self._state, self._num_quotes = _State.ESCAPE, 0
        elif char == self._quote:
            self._num_quotes += 1
            if not self._is_triple or self._num_quotes == 3:
                self._state, self._num_quotes = _State.CODE, 0
        else:
            self._num_quotes = 0
            if char == "\n" and not self._is_triple:
                self._state = _State.CODE  # an error, which the parser will find


def statements(source: str, tools: Mapping[str, Sequence[str]]) -> list[Statement] | None:
    """What `source` does, in order; None when it is no Python at all.

    `tools` are the known names, each with its parameters' names in order (for arguments without a keyword).
    """
    try:
        tree = ast.parse(source.strip())
    except _FAULTS:
        return None
    first = len(source) - len(source.lstrip())
    num_before = source[:first].count("\n")
    found = []
    for node in tree.body:
        lines = (node.lineno + num_before, (node.end_lineno or node.lineno) + num_before)
        try:
            found.append(_statement(node, tools, lines))
        except _FAULTS:
            found.append(Statement(_name_of(node), problem="an argument is no literal value", lines=lines))
    return found


def _name_of(node: ast.stmt) -> str:
    call = _call_of(node)
    return call.func.id if call is not None and isinstance(call.func, ast.Name) else ""


def _call_of(node: ast.stmt) -> ast.Call | None:
    """The call that `node` is, that it assigns, or whose result it prints."""
    value: ast.expr | None = None
    if isinstance(node, ast.Expr | ast.Assign | ast.AnnAssign):
        value = node.value
    if not isinstance(value, ast.Call):
        return None
    is_print = isinstance(value.func, ast.Name) and value.func.id == "print" and len(value.args) == 1
    if is_print and isinstance(value.args[0], ast.Call) and not value.keywords:
        return value.args[0]
    return value


def _statement(node: ast.stmt, tools: Mapping[str, Sequence[str]], lines: tuple[int, int]) -> Statement:
    """Raises one of _FAULTS: an argument is no literal, or no JSON."""
    call = _call_of(node)
    name = _name_of(node)
    if call is None or not name:
        return Statement("", problem="it is no call of a tool", lines=lines)
    if name not in tools:
        return Statement(name, problem="there is no such tool", is_unknown=True, lines=lines)
    values: dict[str, str] = {}
    if len(call.args) > len(tools[name]):
        return Statement(name, problem="it has too many arguments", lines=lines)
    pairs = [(key, _json(ast.literal_eval(value))) for key, value in zip(tools[name], call.args, strict=False)]
    for keyword in call.keywords:
        value = ast.literal_eval(keyword.value)
        if keyword.arg is not None:
            pairs.append((keyword.arg, _json(value)))
        else:  # **{...}
            pairs += [(_key(key), _json(item)) for key, item in dict(value).items()]
    for key, text in pairs:
        if key in values:
            return Statement(name, problem=f"the argument {key!r} comes twice", lines=lines)
        values[key] = text
    return Statement(name, tuple(f"{_json(key)}: {text}" for key, text in values.items()), lines=lines)


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise TypeError
    return key


def _json(value: object) -> str:
    """Raises TypeError or ValueError: JSON has no such value, or it holds half a character."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    text.encode()
    return text
