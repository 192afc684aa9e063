"""Whether an answer is inside a fenced code block, where a tag is an example and not meant.

Owns the fence that is open and the start of the current line. Shared by the parsers that look for tags in content
(`thinking`, `tool_calls`); the same text gives the same state, however it is cut.
"""

from __future__ import annotations

import re

QUOTES = frozenset("`'\"")  # right behind one of these a tag is quoted

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)", re.DOTALL)
_MAX_LINE_CHARS = 200  # of a line's start, where alone a fence can stand


class CodeFence:
    """`feed` it all content. As Markdown has it: a block ends with a line of as many of its fence's characters."""

    def __init__(self) -> None:
        self._fence = ""
        self._line = ""  # its start
        self._before = ""  # the last character

    @property
    def is_quoting(self) -> bool:
        """Whether a tag that comes next is quoted: in a block, on the line that opens one, or right behind a quote."""
        return self._before in QUOTES or self.is_code

    @property
    def is_code(self) -> bool:
        """The same, but of quotes a backtick alone: for a tag that nobody types, but which a sample may hold."""
        return self._before == "`" or bool(self._fence) or _opened(self._line) != ""

    @property
    def may_begin(self) -> bool:
        """Whether a block may begin here: at a line's start, outside of one."""
        return not self._line and not self._fence

    def feed(self, text: str) -> None:
        if not text:
            return
        self._before = text[-1]
        *ended, rest = text.split("\n")
        for line in ended:
            self._grow(line)
            self._end_line()
        self._grow(rest)

    def forget_quote(self) -> None:
        """Something that is no content came between."""
        self._before = ""

    def _grow(self, text: str) -> None:
        if text and len(self._line) < _MAX_LINE_CHARS:
            self._line = (self._line + text)[:_MAX_LINE_CHARS]

    def _end_line(self) -> None:
        if not self._fence:
            self._fence = _opened(self._line)
        else:
            match = _FENCE.fullmatch(self._line)
            if match is not None and match[1].startswith(self._fence) and not match[2].strip():
                self._fence = ""
        self._line = ""


def _opened(line: str) -> str:
    """The fence that `line` opens."""
    match = _FENCE.fullmatch(line)
    if match is None or (match[1][0] == "`" and "`" in match[2]):
        return ""
    return match[1]
