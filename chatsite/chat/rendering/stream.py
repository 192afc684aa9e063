"""Model text -> safe HTML, block by block: a finished block never changes, so streamed and reloaded pages are the same.

Text is read line by line. A block is finished when a complete line has begun the next top-level block or has closed it
for good (a heading's own line, the end of a fence, the blank line after a paragraph); it is then rendered, once, from
its own lines (and the link targets defined in earlier blocks). Decisions depend on the lines read alone, never on how
the text was cut into pieces, and `blocks` is one feed of the same class: for every split the blocks of a stream are
those of the whole text.

Only the unfinished tail is parsed again, and only when a line could have begun a block; one that was parsed often waits
until it has grown by a part, so that the cost stays linear. Inside an open code fence nothing is parsed at all, nor in
a `<details>` before its end, which has to come within a bound.

The tail has a view of its own (`view`): rendered up to the last place where plain text follows, then that text. It too
depends on the text alone, so a page that is loaded in mid-answer shows what a stream shows there. It is rendered when
asked for, at most once per such place; a long tail at few of them.
Called by `sse` (one stream per viewer), `message` and `review`, on any thread. A stream belongs to one thread.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape
from uuid import UUID

from django.utils.safestring import SafeString, mark_safe

from chatsite.chat.rendering import details
from chatsite.chat.rendering.markdown import Known, Start, html_blocks, starts, unfinished_html
from chatsite.chat.rendering.partial import as_plain, begins_fence, is_told, settled, stops
from chatsite.chat.rendering.renderer import GROWTH_HTML

NUM_PARSES = 6  # as often is each character of a tail parsed to see whether a line has begun a block, and once more
EAGER_VIEW_CHARS = 600  # a tail up to this is rendered wherever its look may change (1 ms or two)
VIEW_SHARE = 12  # a longer one when it has grown by one such part of what it has more

_MAY_BEGIN = frozenset("#`~>-*+_|:=$\\[0123456789")
_FENCE_BEGUN = re.compile(r" {0,3}(?:`+|~+)[ \t]*\Z")
_ONE_LINERS = frozenset({"heading_open", "hr"})
_OUTLAST_BLANKS = frozenset(
    {"bullet_list_open", "ordered_list_open", "code_block", "fence", "footnote_reference_open", "details_open"}
)
_ROWS = {"blockquote_open": ">", "table_open": "|"}  # how each of their lines may begin
_ITEM = re.compile(r"(?:([-*+])|\d{1,9}([.)]))[ \t]+[^-*_\s]")


@dataclass(frozen=True)
class Update:
    """`blocks` just finished (HTML, never to change), and all the text after them that is not."""

    blocks: list[str]
    tail: str


@dataclass(frozen=True)
class View:
    """What the unfinished tail looks like: `html` up to some place, then `text`, which belongs where `html` says."""

    html: str
    text: str

    @property
    def whole(self) -> str:
        """The HTML of it all; the text still to come is added in its `b` element."""
        before, _, after = self.html.rpartition(GROWTH_HTML)
        return f"{before}<b>{escape(self.text, quote=False)}</b>{after}" if self.html else ""


class BlockStream:
    """Blocks of a growing text. `feed` pieces of any size, then `finish` once.

    `scope` makes ids unique on a page that shows several texts.
    """

    def __init__(self, scope: str = "") -> None:
        self._known = Known(scope)
        self._lines: list[str] = []  # complete lines of the unfinished region, each with its newline
        self._num_chars = 0  # of them
        self._partial = ""  # the line that has no newline yet
        self._holds_return = False  # the text so far ended with a carriage return: half of a line end, or a whole one
        self._open = Start(0, "")  # the block that the region begins with
        self._fence_end: re.Pattern[str] | None = None  # what closes it, while it is an open code fence
        self._depth = details.Depth()  # while it is a `<details>`
        self._parsed_chars = 0  # of the region, each as often as it was parsed
        self._settled = 0  # so far into the unfinished line are its stops known
        self._stop = 0  # so many characters of the region does the view render
        self._rendered: tuple[int, str, bool] | None = (
            None  # the view's HTML: of how many characters; hides it the rest
        )

    def feed(self, text: str) -> Update:
        """Take the next piece of text."""
        return Update(self._take(text), self.tail)

    def finish(self) -> list[str]:
        """The remaining blocks; the text is complete."""
        fresh = self._take("\n") if self._holds_return else []
        region = "".join(self._lines) + self._partial
        fresh += html_blocks(region, self._known) if region else []
        self._restart([])
        self._partial = ""
        return fresh

    @property
    def tail(self) -> str:
        """The text that no finished block holds yet."""
        return "".join(self._lines) + self._partial

    def view(self) -> View:
        """The tail as it is shown. Where text was only added since the last view, `html` is the same."""
        if self._fence_end is None:
            self._advance(self._partial)
        if not self._stop:
            return View("", "")
        tail = self.tail
        if self._rendered is None or self._rendered[0] != self._stop:
            self._rendered = (self._stop, *unfinished_html(tail[: self._stop], self._known))
        _, html, hides = self._rendered
        if self._fence_end is not None:
            return View(html, tail[self._stop : self._num_chars] + re.sub(_FENCE_BEGUN, "", self._partial))
        text = tail[self._stop :] if is_told(self._partial) else tail[self._stop : self._num_chars].rstrip("\n")
        if hides:  # a word at most, where the next stop may be far
            space = re.search(r"\s", text) if self._stop > EAGER_VIEW_CHARS else None
            text = text[space.start() :] if space else ""
        before = html.rpartition(GROWTH_HTML)[0]
        if before.rfind("<pre>") <= before.rfind("</pre>"):
            text = as_plain(text)
        return View(html, "\n" + text if text and tail[self._stop - 1] == "\n" else text)

    def _advance(self, line: str) -> None:
        """Find up to where the view goes, `line` being what follows the complete ones."""
        for stop in stops(line, max(0, self._stop - self._num_chars), self._settled):
            self._stop_at(self._num_chars + stop)
        self._settled = settled(line)

    def _stop_at(self, num_chars: int) -> None:
        if num_chars - self._stop >= (num_chars - EAGER_VIEW_CHARS) // VIEW_SHARE:
            self._stop = num_chars

    def _take(self, text: str) -> list[str]:
        if self._holds_return:
            text = "\r" + text
        self._holds_return = text.endswith("\r")
        if self._holds_return:
            text = text[:-1]
        if "\r" in text:
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        first, *rest = text.replace("\0", "\ufffd").split("\n")
        if not rest:
            self._partial += first
            return []
        fresh: list[str] = []
        for line in (self._partial + first, *rest[:-1]):
            fresh += self._read(line + "\n")
        self._partial = rest[-1]
        return fresh

    def _read(self, line: str) -> list[str]:
        """Add one complete line; what it finished."""
        is_blank = not line.strip(" \t\n")
        if is_blank and not self._lines:
            return []
        if self._fence_end is not None:
            self._add(line)
            return self._end_region() if self._fence_end.match(line) else []
        if self._open.kind == "details_open":
            return self._read_fold(line)
        if is_blank:
            self._add(line)
            return [] if self._open.kind in _OUTLAST_BLANKS else self._cut(after_blank=True)
        may_begin = self._may_begin(line)
        self._add(line)
        if not may_begin or self._parsed_chars > NUM_PARSES * self._num_chars:
            return []
        return self._cut()

    def _read_fold(self, line: str) -> list[str]:
        """Add one complete line to a `<details>`; without an end in time it is none."""
        self._add(line)
        self._depth.read(line)
        if self._num_chars > details.MAX_CHARS:
            return self._cut()
        return [] if self._depth.now else self._end_region()

    def _may_begin(self, line: str) -> bool:
        """Whether `line` could begin a top-level block. A wrong yes costs a parse, a wrong no delays a cut."""
        if not self._lines:
            return True
        if self._is_sibling(line):
            return False
        if not self._lines[-1].strip(" \t\n"):
            return True
        words = line.lstrip(" \t")
        if line[0] in " \t" and words[0] not in "`~<":
            return False
        if words[0] == "<":
            return details.begins(words)
        return self._open.kind == "code_block" or words[0] in _MAY_BEGIN

    def _is_sibling(self, line: str) -> bool:
        """Whether `line` surely goes on with the quote, table or list that the region begins with."""
        kind = self._open.kind
        if kind in _ROWS and self._lines[-1].strip(" \t\n"):
            return line[0] == _ROWS[kind]
        if kind not in ("bullet_list_open", "ordered_list_open"):
            return False
        first, item = _ITEM.match(self._lines[0]), _ITEM.match(line)
        return first is not None and item is not None and first.groups() == item.groups()

    def _cut(self, *, after_blank: bool = False) -> list[str]:
        """Parse the region; render all blocks but the last, and that too when no line could go on with it."""
        found = starts("".join(self._lines))
        self._parsed_chars += self._num_chars
        fresh: list[str] = []
        if len(found) > 1:
            cut = found[-1].line
            fresh = html_blocks("".join(self._lines[:cut]), self._known)
            self._restart(self._lines[cut:])
        self._open = found[-1]
        if self._open.kind == "fence":
            fence = self._open.fence
            self._fence_end = re.compile(rf" {{0,3}}{re.escape(fence[0])}{{{len(fence)},}}[ \t]*\n")
            is_over = any(map(self._fence_end.match, self._lines[1:]))
        elif self._open.kind == "details_open":
            self._depth = details.Depth()
            for line in self._lines:
                self._depth.read(line)
            is_over = not self._depth.now
        else:
            is_over = self._open.kind in _ONE_LINERS or (after_blank and self._open.kind not in _OUTLAST_BLANKS)
        return fresh + self._end_region() if is_over else fresh

    def _end_region(self) -> list[str]:
        fresh = html_blocks("".join(self._lines), self._known)
        self._restart([])
        return fresh

    def _restart(self, lines: list[str]) -> None:
        self._lines = lines
        self._num_chars = sum(map(len, lines))
        self._open, self._fence_end, self._parsed_chars = Start(0, ""), None, 0
        self._stop, self._rendered = self._num_chars, None
        self._settled = 0

    def _add(self, line: str) -> None:
        if self._fence_end is not None:
            self._lines.append(line)
            self._num_chars += len(line)
            return
        self._advance(line.removesuffix("\n"))
        self._settled = 0
        self._lines.append(line)
        self._num_chars += len(line)
        if begins_fence(line):
            self._stop = self._num_chars
        else:
            self._stop_at(self._num_chars)


def scope_of(message_id: UUID) -> str:
    """The scope of the ids in a message's HTML."""
    return message_id.hex[-12:]


def blocks(text: str, scope: str = "") -> list[str]:
    """The HTML of each top-level block of `text`."""
    stream = BlockStream(scope)
    return stream.feed(text).blocks + stream.finish()


def render(text: str, scope: str = "") -> SafeString:
    """The HTML of `text`: its blocks, one after the other. `scope` as in `BlockStream`."""
    return mark_safe("".join(blocks(text, scope)))
