"""ChatGPT's marks in a text: citations and the like, between characters of a private area that nobody can read.

`\ue200cite\ue202turn0search1\ue201` shows there as a link to a source, which the export does not have; all of it goes.
So do marks that lost their neighbours. What an entity is called, and the words of a link, stay.
"""

from __future__ import annotations

import json
import re

MARKS = re.compile("[\ue200-\ue206]")
_SPAN = re.compile("[ \\t]?\ue200([^\ue200\ue201]*)\ue201")
_LEFT_OVER = re.compile(
    "(?:cite|filecite|navlist|image_group)?(?:\ue202?(?:turn\\d+[a-z]+\\d+)(?:[LC]\\d+(?:-[LC]?\\d+)?)?)+"
)
_OLD = re.compile("[ \\t]?\u3010\\d+(?::\\d+)?\u2020[^\u3010\u3011]{0,200}\u3011")


def without_citations(text: str) -> str:
    """`text` as a reader would have seen it, without its sources."""
    if MARKS.search(text):
        text = _SPAN.sub(_words, text)
        if MARKS.search(text):
            text = MARKS.sub("", "".join(_line(line) for line in text.splitlines(keepends=True)))
    return _OLD.sub("", text) if "\u3010" in text else text


def _line(line: str) -> str:
    """A mark without its end: what it stands before is no word."""
    return _LEFT_OVER.sub("", line) if MARKS.search(line) else line


def _words(found: re.Match[str]) -> str:
    kind, *parts = found[1].split("\ue202")
    gap = found[0][: found[0].index("\ue200")]
    if kind == "entity" and parts:
        try:
            names = json.loads(parts[0])
        except (ValueError, RecursionError):
            return ""
        name = names[1] if isinstance(names, list) and len(names) > 1 else ""
        return f"{gap}{name}" if isinstance(name, str) and name else ""
    if kind in ("url", "link_title") and parts:
        return gap + parts[0]
    return ""
