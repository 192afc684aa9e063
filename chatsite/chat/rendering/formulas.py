"""LaTeX in model text: finds formulas so that nothing inside them is read as Markdown. `mathml` draws them.

Knows only the parser's own rules, never raw text with regular expressions ahead of it: code stays code. `$` is a
formula by Pandoc's rule (no space inside the delimiters, no digit after the closing one) and never an amount of money.
An environment such as `\\begin{align}` is a formula by itself, with no delimiters around it.
Two rules are added to a parser: one for `$…$`, `$$…$$`, `\\(…\\)`, `\\[…\\]` and environments within a line of text,
one for a display formula that starts a line, whose lines could otherwise be taken for lists and headings.
"""

from __future__ import annotations

import re

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline

MAX_INLINE_CHARS = 1_000  # of one formula; more is an unclosed delimiter
MAX_DISPLAY_CHARS = 4_000
OPEN_END = "is_open_ended"  # in the parser's env: more lines may follow, so a formula without an end is not refused yet

_CLOSERS = {"$": "$", "$$": "$$", "\\(": "\\)", "\\[": "\\]"}
_ENVIRONMENTS = (
    "align alignat aligned alignedat array bmatrix Bmatrix cases dcases displaymath drcases eqnarray equation flalign "
    "gather gathered matrix multline pmatrix rcases smallmatrix split vmatrix Vmatrix"
).split()
_BEGIN = re.compile(rf"\\begin\{{((?:{'|'.join(_ENVIRONMENTS)})\*?)\}}")
_ESCAPED = re.compile(r"\\.", re.DOTALL)
_IS_FORMULA_AFTER_DIGIT = re.compile(r"[\\^_=+{}]")


def install(md: MarkdownIt) -> None:
    """Teach `md` both rules."""
    md.inline.ruler.before("escape", "formula", _inline_rule)
    md.block.ruler.before("table", "display_formula", _block_rule, {"alt": ["paragraph", "blockquote", "list"]})


def is_closed(source: str) -> bool:
    """Whether the source of a formula has its end."""
    source = source.strip()
    opener = _opener(source, 0)
    return len(source) > 2 * len(opener) and source.endswith(_closer(opener))


def _opener(source: str, begin: int) -> str:
    """The delimiter at `begin`, or the begin of an environment; empty: there is none."""
    if match := _BEGIN.match(source, begin):
        return match[0]
    return next((opener for opener in (source[begin : begin + 2], source[begin : begin + 1]) if opener in _CLOSERS), "")


def _closer(opener: str) -> str:
    return _CLOSERS.get(opener) or opener.replace("begin", "end", 1)


def _inline_rule(state: StateInline, silent: bool) -> bool:
    source, start, end = state.src, state.pos, state.posMax
    if source[start] not in "$\\":
        return False
    opener = _opener(source, start)
    if not opener:
        return False
    begin = start + len(opener)
    stop = _dollar_end(source, begin, end) if opener == "$" else _end_of(source, begin, end, _closer(opener))
    if stop is None:
        return False
    after = stop + len(_closer(opener))
    if not silent:
        token = state.push("formula", "span", 0)
        token.content = source[start:after]
    state.pos = after
    return True


def _end_of(source: str, begin: int, end: int, closer: str) -> int | None:
    found = source.find(closer, begin, min(end, begin + MAX_DISPLAY_CHARS))
    return found if found > begin and source[begin:found].strip() else None


def _dollar_end(source: str, begin: int, end: int) -> int | None:
    """Where the `$` lies that closes one opened just before `begin`; None: that one is a plain dollar sign."""
    if begin >= end or source[begin].isspace():
        return None
    found = begin
    limit = min(end, begin + MAX_INLINE_CHARS)
    while (found := source.find("$", found + 1, limit)) != -1:
        if source[found - 1] == "\\":
            continue
        body = source[begin:found]
        follows = source[found + 1] if found + 1 < end else ""
        if "`" in body or body[-1].isspace() or follows.isdigit() or follows == "$":
            return None
        groups = _ESCAPED.sub("", body)
        if groups.count("{") != groups.count("}"):
            return None
        if body[0].isdigit() and not _IS_FORMULA_AFTER_DIGIT.search(body):
            return None
        return found
    return None


def _block_rule(state: StateBlock, first: int, last: int, silent: bool) -> bool:
    if state.is_code_block(first):
        return False
    line = _line(state, first)
    opener = _opener(line, 0)
    if opener in ("", "$", "\\("):
        return False
    closer = _closer(opener)
    num_chars = 0
    for number in range(first, last):
        if state.isEmpty(number) or state.sCount[number] < state.blkIndent or num_chars > MAX_DISPLAY_CHARS:
            return False
        line = _line(state, number)
        body = line[len(opener) :] if number == first else line
        if closer in body:
            if body.rstrip().endswith(closer) and body.index(closer) == len(body.rstrip()) - len(closer):
                return _take(state, first, number + 1, silent)
            return False
        if number > first and line.startswith(opener):
            return False
        num_chars += len(line)
    return bool(state.env.get(OPEN_END)) and last == state.lineMax and _take(state, first, last, silent)


def _line(state: StateBlock, number: int) -> str:
    return state.src[state.bMarks[number] + state.tShift[number] : state.eMarks[number]]


def _take(state: StateBlock, first: int, after: int, silent: bool) -> bool:
    if not silent:
        token = state.push("display_formula", "p", 0)
        token.block = True
        token.content = state.getLines(first, after, state.blkIndent, False).strip("\n")
        token.map = [first, after]
        state.line = after
    return True
