"""One JSON object, read character by character, so that what is no JSON is known at its first wrong character.

Owns where in the object the reader stands. Knows nothing of tools: `output.tool_calls` reads calls with it, in the
thread of one generation. Stricter readers than Python's come after it, so NaN is refused; laxer models come before it,
so a line end or a tab inside a string is taken, and written as an escape. Half a character (a lone surrogate) is
refused: no text can hold it.
"""

from __future__ import annotations

import json
import re
from enum import Enum, auto

MAX_DEPTH = 64  # what reads the arguments later may read them recursively
MAX_SCALAR_CHARS = 400

_SPACE = frozenset(" \t\n\r")
_ESCAPED = frozenset('"\\/bfnrt')
_HEX = frozenset("0123456789abcdefABCDEF")
_SCALAR_CHARS = frozenset("0123456789+-.eEtrufalsn")
_SCALAR = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null", re.ASCII)
_CLOSER = {"{": "}", "[": "]"}


class NotJson(ValueError):
    """The character just fed cannot stand there."""


class _State(Enum):
    START = auto()  # nothing but the object's brace may come
    VALUE = auto()
    FIRST_ITEM = auto()  # a value, or the end of an empty list
    FIRST_KEY = auto()  # a key, or the end of an empty object
    KEY = auto()
    COLON = auto()
    NEXT = auto()  # a comma, or the end of what is open
    STRING = auto()
    ESCAPE = auto()
    SCALAR = auto()
    DONE = auto()


class JsonScanner:
    """`feed` it an object. `key` is that of the member being read; `ended` that of the one the last character ended.

    Both speak of the outermost object's members alone. A number, true, false or null ends with what comes after it.
    """

    def __init__(self) -> None:
        self.key = ""
        self.ended: str | None = None
        self._state = _State.START
        self._open: list[str] = []
        self._is_key = False
        self._key_text: list[str] = []
        self._num_hex = 0  # digits that an escape still lacks
        self._hex = ""
        self._needs_low = False  # the escape before was the first half of a character
        self._scalar = ""
        self._is_in_value = False  # of an outermost member

    @property
    def is_done(self) -> bool:
        return self._state is _State.DONE

    def feed(self, char: str) -> str:
        """What `char` adds to the value being read, with control characters of strings escaped.

        Raises:
            NotJson: nothing that begins so is an object. Nothing may be fed after it.
        """
        self.ended = None
        state = self._state
        if state is _State.STRING or state is _State.ESCAPE:
            return self._in_string(char)
        if state is _State.SCALAR:
            if char in _SCALAR_CHARS and len(self._scalar) < MAX_SCALAR_CHARS:
                self._scalar += char
                return self._told(char)
            if not _SCALAR.fullmatch(self._scalar):
                raise NotJson
            self._end_value()
        if char in _SPACE:
            return self._told(char) if len(self._open) > 1 else ""
        return self._structure(char)

    def _in_string(self, char: str) -> str:
        told = char
        if self._num_hex:
            if char not in _HEX:
                raise NotJson
            self._num_hex -= 1
            self._hex += char
            if not self._num_hex:
                self._end_hex()
        elif self._state is _State.ESCAPE:
            if char == "u":
                self._num_hex, self._hex = 4, ""
            elif char in _ESCAPED and not self._needs_low:
                self._state = _State.STRING
            else:
                raise NotJson
        elif char == "\\":
            self._state = _State.ESCAPE
        elif self._needs_low:
            raise NotJson
        elif char < " ":
            told = json.dumps(char)[1:-1]
        elif char == '"':
            return self._end_string()
        if self._is_key and len(self._open) == 1:
            self._key_text.append(told)
        return self._told(told)

    def _end_hex(self) -> None:
        is_low = 0xDC00 <= int(self._hex, 16) <= 0xDFFF
        if is_low != self._needs_low:
            raise NotJson
        self._needs_low = 0xD800 <= int(self._hex, 16) <= 0xDBFF
        self._state = _State.STRING

    def _end_string(self) -> str:
        if not self._is_key:
            told = self._told('"')
            self._end_value()
            return told
        if len(self._open) == 1:
            self.key = json.loads(f'"{"".join(self._key_text)}"')
        self._state = _State.COLON
        return self._told('"')

    def _structure(self, char: str) -> str:
        state = self._state
        if state is _State.START and char == "{":
            self._open.append(char)
            self._state = _State.FIRST_KEY
            return ""
        if state in (_State.FIRST_KEY, _State.KEY) and char == '"':
            self._is_key, self._key_text = True, []
            self._state = _State.STRING
            return self._told(char)
        if state is _State.COLON and char == ":":
            self._state = _State.VALUE
            return self._told(char)
        if state in (_State.VALUE, _State.FIRST_ITEM) and char != "]":
            return self._begin_value(char)
        if state is _State.NEXT and char == ",":
            self._state = _State.KEY if self._open[-1] == "{" else _State.VALUE
            return self._told(char)
        is_end = state is _State.NEXT or state is (_State.FIRST_KEY if char == "}" else _State.FIRST_ITEM)
        if not (is_end and self._open and char == _CLOSER[self._open[-1]]):
            raise NotJson
        told = self._told(char)
        self._open.pop()
        if self._open:
            self._end_value()
        else:
            self._state = _State.DONE
        return told

    def _begin_value(self, char: str) -> str:
        if len(self._open) == 1:
            self._is_in_value = True
        if char in _CLOSER:
            if len(self._open) == MAX_DEPTH:
                raise NotJson
            self._open.append(char)
            self._state = _State.FIRST_KEY if char == "{" else _State.FIRST_ITEM
        elif char == '"':
            self._is_key = False
            self._state = _State.STRING
        elif char in _SCALAR_CHARS:
            self._scalar = char
            self._state = _State.SCALAR
        else:
            raise NotJson
        return self._told(char)

    def _end_value(self) -> None:
        self._state = _State.NEXT
        if len(self._open) == 1:
            self._is_in_value = False
            self.ended = self.key

    def _told(self, text: str) -> str:
        return text if self._is_in_value else ""
