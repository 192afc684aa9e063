"""`<details>` with its `<summary>`: a block that can be folded, with Markdown inside, blank lines too.

Lines alone tell where one begins and ends: a line that begins with `<details>`, the line that ends with its
`</details>`; fenced code is passed over. `Depth` reads them one by one and serves both `markdown`, which waits for the
end of the block, and the rule, so that the two always agree. One that has no end within `MAX_CHARS` is no block, nor is
what is open in it then: the tags are text, and what they hold is shown as ever. The rule is added to a parser;
attributes are not taken. Called by `markdown` and `markdown`.
"""

from __future__ import annotations

import re
from typing import Any

from django.utils.translation import gettext as _
from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock

from chatsite.chat.rendering import formulas

MAX_CHARS = 30_000
MAX_SUMMARY_CHARS = 1_000
IS_OPEN = "is_open"  # in a token's meta: its end has not come

_BEGIN = re.compile(r"<details>", re.IGNORECASE)
_ENDS = re.compile(r"(?:</details>[ \t]*)+\Z", re.IGNORECASE)
_END = re.compile(r"</details>", re.IGNORECASE)
_SUMMARY = re.compile(r"\s*<summary>", re.IGNORECASE)
_SUMMARY_END = re.compile(r"</summary>", re.IGNORECASE)
_PREFIX = re.compile(r"(?:[ \t>]|(?:[-*+]|\d{1,9}[.)])[ \t])*")
_FENCE = re.compile(r"(?:(`{3,})[^`]*|(~{3,}).*)\Z")
_PAIRS = "details"  # in the parser's env: of which text, and its pairs


def begins(line: str) -> bool:
    return _BEGIN.match(line, _prefix_end(line)) is not None


def _prefix_end(line: str) -> int:
    match = _PREFIX.match(line)
    return match.end() if match else 0


class Depth:
    """How many `<details>` are open after the lines read."""

    def __init__(self) -> None:
        self.now = 0
        self._fence = ""

    def read(self, line: str) -> tuple[int, int]:
        """Take one more line: how many it opened (at most one) and closed."""
        begin = _prefix_end(line)
        words = line[begin:].rstrip(" \t\n")
        if self._fence:
            if words.startswith(self._fence) and not words.strip(self._fence[0]):
                self._fence = ""
            return 0, 0
        if match := _FENCE.match(words):
            self._fence = match[1] or match[2]
            return 0, 0
        opened = 1 if _BEGIN.match(words) else 0
        found = _ENDS.search(words[-200:]) if words[-10:].lower() == "</details>" else None
        closed = min(len(_END.findall(found[0])), self.now + opened) if found else 0
        self.now += opened - closed
        return opened, closed


def install(md: MarkdownIt) -> None:
    """Teach `md` the rule."""
    md.block.ruler.before("table", "details", _rule, {"alt": ["paragraph", "reference", "blockquote", "list"]})


def _rule(state: StateBlock, first: int, last: int, silent: bool) -> bool:
    begin = state.bMarks[first] + state.tShift[first]
    if not _BEGIN.match(state.src, begin, state.eMarks[first]) or state.is_code_block(first):
        return False
    pairs = _pairs(state)
    end = pairs.get(first, -1)
    is_open = end == -1 and first in pairs
    if first not in pairs or end >= last:
        return False
    stop = last if is_open else end + 1
    if any(state.sCount[line] < state.blkIndent and not state.isEmpty(line) for line in range(first + 1, stop)):
        return False
    if silent:
        return True
    del pairs[first]
    _parse(state, first, stop, begin + len("<details>"), is_open)
    return True


def _pairs(state: StateBlock) -> dict[int, int]:
    """For each line that begins a block: the line that ends it; -1: it is open, and may be."""
    known: tuple[str, dict[int, int]] | None = state.env.get(_PAIRS)
    if known is None or known[0] is not state.src:
        known = (state.src, _found_pairs(state.src, may_be_open=bool(state.env.get(formulas.OPEN_END))))
        state.env[_PAIRS] = known
    return known[1]


def _found_pairs(source: str, *, may_be_open: bool) -> dict[int, int]:
    pairs: dict[int, int] = {}
    open_at: list[tuple[int, int]] = []  # line, and characters before it
    depth = Depth()
    num_chars = 0
    for number, line in enumerate(source.split("\n")):
        opened, closed = depth.read(line)
        if opened:
            open_at.append((number, num_chars))
        num_chars += len(line) + 1
        if open_at and num_chars - open_at[0][1] > MAX_CHARS:  # the outermost is none, so nobody knows what closes what
            open_at.clear()
            depth.now = 0
            continue
        for _each in range(closed):
            pairs[open_at.pop()[0]] = number
    if may_be_open:
        pairs |= {begun: -1 for begun, _before in open_at}
    return pairs


def _parse(state: StateBlock, first: int, stop: int, begin: int, is_open: bool) -> None:
    """Push the block of the lines from `first` to before `stop`, whose words begin at `begin`."""
    kept: list[tuple[int, tuple[int, int, int, int]]] = []

    def change(line: int, begin: int, end: int) -> None:
        kept.append((line, (state.bMarks[line], state.tShift[line], state.sCount[line], state.eMarks[line])))
        state.bMarks[line], state.tShift[line], state.eMarks[line] = begin, 0, end
        state.sCount[line] = state.blkIndent

    if not is_open:
        line = stop - 1
        raw = state.src[state.bMarks[line] : state.eMarks[line]]
        ends = _ENDS.search(raw)
        if ends is not None:  # an outer block may have taken it away already
            end = state.bMarks[line] + ends.start()
            kept.append((line, (state.bMarks[line], state.tShift[line], state.sCount[line], state.eMarks[line])))
            state.eMarks[line] = max(end, state.bMarks[line] + state.tShift[line])
    token = state.push("details_open", "details", 1)
    token.map = [first, stop]
    token.meta[IS_OPEN] = is_open
    line, begin = _push_summary(state, first, stop, begin)
    if line < stop:
        change(line, min(begin, state.eMarks[line]), state.eMarks[line])
        kept_parent, kept_max = state.parentType, state.lineMax
        state.parentType, state.lineMax = "root", stop
        state.md.block.tokenize(state, line, stop)
        state.parentType, state.lineMax = kept_parent, kept_max
    state.push("details_close", "details", -1)
    for line, (marks, shift, count, ends_at) in reversed(kept):
        state.bMarks[line], state.tShift[line], state.sCount[line], state.eMarks[line] = marks, shift, count, ends_at
    state.line = stop


def _push_summary(state: StateBlock, first: int, stop: int, begin: int) -> tuple[int, int]:
    """Push the line that is always seen; where the words behind it begin: in which line, at which character."""
    limit = min(state.eMarks[stop - 1], begin + MAX_SUMMARY_CHARS)
    words: Any = _("Details")
    line = first
    opening = _SUMMARY.match(state.src, begin, limit)
    if opening is not None:
        ending = _SUMMARY_END.search(state.src, opening.end(), limit)
        end = ending.start() if ending else _line_end(state, opening.end(), first, stop)
        words = " ".join(state.src[opening.end() : end].split())
        begin = ending.end() if ending else end
        while line < stop - 1 and begin > state.eMarks[line]:
            line += 1
    state.push("summary_open", "summary", 1)
    token = state.push("inline", "", 0)
    token.content, token.map, token.children = str(words), [first, line + 1], []
    state.push("summary_close", "summary", -1)
    return line, begin


def _line_end(state: StateBlock, begin: int, first: int, stop: int) -> int:
    return next(state.eMarks[line] for line in range(first, stop) if state.eMarks[line] >= begin)
