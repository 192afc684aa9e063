"""How the unfinished end of an answer is shown: as if it ended here, without loose delimiters.

Owns what is guessed for display alone: emphasis, code and tags that are open are closed, the beginning of a link shows
its words, an image or a written address stays hidden until it is whole, half a tag too, a table's first line is one.
Nothing here decides what a finished block is; that is parsed from the text as it stands. What a tag and a bare address
look like is said here, since both are recognised while they grow. Pure functions of the text. Called by `markdown`,
`bare_links`, `tags` and `markdown`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from chatsite.chat.rendering import cjk

GROWTH = "\ufdd0"  # a noncharacter, where text that follows will be added; it is taken out of the text beforehand
MAX_EMPHASIS_CHARS = 400  # an asterisk that long ago was meant as one
MAX_LINK_CHARS = 300
MAX_OPEN_MARKS = 64  # that are looked through for the one that is closed
MAX_WORD_CHARS = 2_010  # of an address with its scheme, and what follows it
MAX_UNSETTLED_CHARS = 16  # of a line's end, before its delimiters: half a tag, a scheme, the first word of a cell
MAX_ENDED_CHARS = 8_000  # of a paragraph; a longer one is shown as it stands until it is whole

_NAMES = "sub sup kbd mark u b strong i em s del".split()
TAG = re.compile(rf"<(?:br ?/?|(?P<slash>/)?(?P<name>{'|'.join(_NAMES)}))>", re.IGNORECASE)
_ANY_TAG = rf"(?i:<br ?/?>|</?(?:{'|'.join(_NAMES)}|details|summary)>)"
_TAGS = ["<br/>", "<br />", *(f"<{slash}{name}>" for name in (*_NAMES, "details", "summary") for slash in ("", "/"))]
_WHOLE_TAG = re.compile(_ANY_TAG)
_HALVES = sorted({tag[:end] for tag in _TAGS for end in range(1, len(tag))}, key=len, reverse=True)
_HALF_TAG = re.compile(rf"(?:{'|'.join(map(re.escape, _HALVES))})\Z", re.IGNORECASE)

# A bare address: where one may begin, and how far it may reach. Which part of that is one, `bare_links` asks a library.
ADDRESS_BEGIN = rf"(?=[hHmMwW])(?:(?<![^\W_])|(?<=[{cjk.LETTERS}]))(?i:https?://|mailto:|www\.)"
_TURNS = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # the direction of text; nobody types them into an address
ADDRESS = re.compile(
    rf"(?:(?![\s<>`|{GROWTH}\x00-\x1f{_TURNS}{cjk.PUNCTUATION}]|\*\*|~~|\[\^|\*(?=[{cjk.LETTERS}])"
    r"|&(?:[lg]t|quot|nbsp);).)+"
)
CLOSING = "?!.,:;*_~'\"\\”’“‘»«›‹…·।؟،؛"  # belongs to the text around an address

_SPECIAL = re.compile(rf"\\|`+|\*+|_+|~+|\$\$|!?\[|\]|<|{ADDRESS_BEGIN}")
_ADDRESS = re.compile(r"<(?:https?:|mailto:)[^<>\s]*\Z", re.IGNORECASE)
_ROW = re.compile(r"([ \t>]*)\|(.+)\Z")
_DELIMITER_LINE = re.compile(r"[-:| \t]+\Z")

_ITEM = r"(?:[-*+]|\d{1,9}[.)])[ \t]+"
_MARKERS = r" \t\-*+>#|)(`~\[\]^:=$\\_!<&."
_FENCE = re.compile(rf"[ \t>]*(?:{_ITEM})*(?:`{{3}}|~{{3}})")
_UNTOLD = re.compile(rf"[ \t>]*(?:{_ITEM})*(?:\d{{1,9}}[.)]?|\[[ xX]?\]?)[ \t]*\Z")


def _at_once(pattern: str, name: str) -> str:
    """`pattern`, of which nothing is given back. Python's own `(?>…)` and `*+` go wrong before 3.11.5."""
    return rf"(?=(?P<{name}>{pattern}))(?P={name})"


_LED_IN = _at_once(rf"(?:[ \t>]|{_ITEM})*", "item") + _at_once(r"(?:\[[ xX]\][ \t])?", "task")
_FIRST_WORD = re.compile(rf"{_LED_IN}{_at_once(rf'(?:{_ANY_TAG}|[{_MARKERS}])*', 'marks')}[^{_MARKERS}\n]")
_DELIMITERS = r"\]\(|(?<=<http)s?:|(?<=<mailto):|[*_~`$\])|\\<>\[!]"
_DELIMITER_CHARS = "*_~`$])|\\<>[!("
_RUN = re.compile(  # never a part of one
    rf"(?<![*_~`$\])|\\<>\[!]){_at_once(f'(?:{_DELIMITERS})+', 'run')}(?=[^*_~`$\])|\\<>\[!])"
)
_ADDRESS_ENDED = re.compile(r"(?i:://|www\.|mailto:)(?:(?!://|www\.|mailto:)\S){0,2000}\s[^\s*_~`$\])|\\<>\[!]")
_LOOSE_END = re.compile(rf"(?:\]\(|\\\)|[*_~`$|\\<\[!\]]|{_ANY_TAG})+\Z")
_MARKS = re.compile(r"\*\*|`")


@dataclass(frozen=True)
class Ended:
    """Text that may end here. `hides`: what is written next belongs to something not shown yet."""

    text: str
    closers: str
    hides: bool = False


def as_plain(text: str) -> str:
    """`text` as it is shown until it is rendered: less the delimiters at its end, whose meaning the next character
    decides, and less those that are never meant as themselves.
    """
    return _MARKS.sub("", _LOOSE_END.sub("", _HALF_TAG.sub("", text)))


def begins_fence(line: str) -> bool:
    return bool(_FENCE.match(line))


def is_told(line: str) -> bool:
    """Whether an unfinished `line` has begun to say something: it is no mere marker that may yet mean another thing."""
    if begins_fence(line) or _UNTOLD.match(line):
        return False
    word = _FIRST_WORD.match(line)
    return word is not None and not (line[word.end() - 2 : word.end() - 1] == "<" and _is_tag(line, word.end() - 2))


def stops(line: str, after: int, begin: int = 0) -> Iterator[int]:
    """Up to where an unfinished `line` may be rendered, beyond `after`: behind its first word, delimiters, an address.

    What follows such a place is plain text, so nothing between two of them changes how the line looks. Whoever asks
    again when the line has grown gives as `begin` what `settled` said of it before, and gets the new ones.
    """
    if not is_told(line):
        return
    if not after:
        first = _FIRST_WORD.match(line)
        assert first is not None, "the line is told"
        yield first.end()
        after = first.end()
    ends = [match.end() for match in _ADDRESS_ENDED.finditer(line, max(0, begin - MAX_WORD_CHARS))]
    yield from sorted({end for end in (*ends, *_behind_delimiters(line, begin)) if end > after})


def settled(line: str) -> int:
    """Up to where the stops of `line` are known, however it goes on."""
    return max(0, len(line.rstrip(_DELIMITER_CHARS)) - MAX_UNSETTLED_CHARS)


def _behind_delimiters(line: str, begin: int) -> Iterator[int]:
    for match in _RUN.finditer(line, begin):
        if line[match.end() - 1] == "<" and _is_tag(line, match.end() - 1):
            continue  # nobody sees a tag; behind it is a place again
        end = match.end() if line[match.end()].isspace() else match.end() + 1
        if line[end - 1] == "|":  # what follows is in the next cell, which is there once it has a word
            end += 2
            if end > len(line) or line[end - 1].isspace():
                continue
        yield end


def _is_tag(line: str, begin: int) -> bool:
    """Whether one stands there, or may when it is whole."""
    return bool(_WHOLE_TAG.match(line, begin) or _HALF_TAG.match(line, begin))


def with_table(region: str) -> str:
    """`region`, with the delimiter row that the table it ends with does not have yet."""
    *before, last = region.rstrip("\n").split("\n")
    match = _ROW.match(last)
    if match is None or _DELIMITER_LINE.match(last) or (before and "|" in before[-1]):
        return region
    cells = match[2].rstrip().removesuffix("|")
    num_cells = cells.count("|") - cells.count("\\|") + 1
    return f"{region.rstrip()}\n{match[1]}|{'---|' * num_cells}\n"


def ended(text: str) -> Ended:
    """A paragraph's text as it can end here: what to show of it, and what closes it."""
    open_marks: list[tuple[str, int]] = []  # what closes emphasis and tags, and where it was opened
    if len(text) > MAX_ENDED_CHARS:
        return Ended(text, "")
    brackets: list[tuple[str, int]] = []
    position = 0
    while match := _SPECIAL.search(text, position):
        mark, begin, position = match[0], match.start(), match.end()
        if mark == "\\" or mark == "$$":
            opener = text[begin : begin + 2]
            closer = {"\\(": "\\)", "\\[": "\\]", "$$": "$$"}.get(opener)
            position = begin + 2
            if closer is not None:
                end = text.find(closer, position)
                if end == -1:
                    is_empty = not text[position:].strip()
                    return _closed(text[:begin] if is_empty else text, "" if is_empty else closer, open_marks)
                position = end + 2
        elif mark[0] == "`":
            closing = re.compile(rf"(?<!`)`{{{len(mark)}}}(?!`)").search(text, position)
            if closing is None:
                is_empty = not text[position:].strip()
                return _closed(text[:begin] if is_empty else text, "" if is_empty else mark, open_marks)
            position = closing.end()
        elif mark[0] in "*_~":
            if (cut := _take_run(text, begin, position, open_marks)) is not None:
                return _closed(text[:cut], "", open_marks)
        elif mark == "<":
            if _ADDRESS.match(text, begin):
                return _closed(text[:begin], "", open_marks, hides=True)
            if tag := TAG.match(text, begin):
                position = tag.end()
                if tag["name"] and not _take_tag(tag, open_marks, is_last=not text[position:].strip()):
                    return _closed(text[:begin], "", open_marks)
        elif mark[0] in "hHmMwW":
            reach = ADDRESS.match(text, begin)
            assert reach is not None, "it begins like one"
            position = begin + len(reach[0].rstrip(CLOSING))
        elif mark == "]":
            if not brackets:
                continue
            opener, at = brackets.pop()
            if text[position : position + 1] == "(":
                end = text.find(")", position)
                if end == -1 and len(text) - position <= MAX_LINK_CHARS and "\n" not in text[position:]:
                    shown = text[:at] if opener == "![" else text[:at] + text[at + 1 : begin]
                    return _closed(shown, "", open_marks, hides=True)
                position = end + 1 if end != -1 else position + 1
        else:
            brackets.append((mark, begin))
    if brackets and len(text) - brackets[-1][1] <= MAX_LINK_CHARS:
        opener, at = brackets[-1]
        if opener == "![" or text.startswith("[^", at):
            return _closed(text[:at], "", open_marks, hides=True)
        text = text[:at] + text[at + 1 :]
        open_marks = [(mark, where - (where > at)) for mark, where in open_marks]
    return _closed(text, "", open_marks)


def _take_tag(tag: re.Match[str], open_marks: list[tuple[str, int]], *, is_last: bool) -> bool:
    """Count a tag; False: it opens, and there is nothing in it yet."""
    closer = f"</{tag['name']}>"
    if tag["slash"]:
        found = next((i for i in reversed(range(len(open_marks))) if open_marks[i][0] == closer), None)
        if found is not None:
            del open_marks[found:]
    elif is_last:
        return False
    elif all(mark != closer for mark, _at in open_marks):
        open_marks.append((closer, tag.end()))
    return True


def _take_run(text: str, begin: int, end: int, open_marks: list[tuple[str, int]]) -> int | None:
    """Count a run of delimiters; where the text is to be cut, if the run is its loose end."""
    char, count = text[begin], end - begin
    before, after = text[begin - 1 : begin], text[end : end + 1]
    closes = bool(before) and not before.isspace() and (char != "_" or not after.isalnum())
    while closes and count:
        nearest = range(len(open_marks) - 1, max(-1, len(open_marks) - 1 - MAX_OPEN_MARKS), -1)
        found = next((i for i in nearest if open_marks[i][0] in (char, char * 2)), None)
        if found is None or len(open_marks[found][0]) > count:
            break
        count -= len(open_marks[found][0])
        del open_marks[found:]
    if not count:
        return None
    if not after.strip():
        return begin if not after else None
    if (char == "~" and count != 2) or (char == "_" and before.isalnum()):
        return None
    open_marks += [(char * 2, begin)] * (count // 2) + [(char, begin)] * (count % 2)
    return None


def _closed(text: str, closers: str, open_marks: list[tuple[str, int]], *, hides: bool = False) -> Ended:
    for mark, at in reversed(open_marks):
        if len(text) - at <= MAX_EMPHASIS_CHARS and text[at:].strip(" \n*_~"):
            closers += mark
    return Ended(text, closers, hides)
