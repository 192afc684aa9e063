"""What the HTML of answers may hold, judged by a parser that knows nothing of how it was made."""

from __future__ import annotations

import re
from html.parser import HTMLParser

VOID = {"br", "hr"}
LINK = {"href", "rel", "target", "class", "title", "id"}
ATTRIBUTES: dict[str, set[str]] = {
    "a": LINK,
    "button": {"type", "class", "data-act"},
    "code": {"dir"},
    "details": {"open", "dir"},
    "div": {"class", "id", "tabindex", "dir"},
    "ol": {"start", "dir"},
    "math": {"display"},
    "annotation": {"encoding"},
    "mo": set("stretchy fence accent separator movablelimits minsize maxsize lspace rspace form mathvariant".split()),
    "mspace": {"width", "height", "depth"},
    "mpadded": {"width", "height", "depth"},
    "mstyle": {"displaystyle", "scriptlevel", "mathsize"},
    "mtable": {"displaystyle"},
    "mtd": {"columnalign"},
    "mfrac": {"linethickness"},
    "menclose": {"notation"},
    "mover": {"accent"},
    "munder": {"accentunder"},
    **{tag: {"class", "dir"} for tag in "figure li p span sup td th".split()},
    **{tag: {"dir"} for tag in "blockquote h3 h4 h5 h6 summary table ul".split()},
    **{tag: {"mathvariant"} for tag in "mi mn mtext".split()},
    **{tag: set() for tag in "b br em figcaption hr kbd mark pre s strong sub tbody thead tr u".split()},
    **{
        tag: set()
        for tag in "semantics mrow mphantom mtr munderover msqrt mroot msub msup msubsup mmultiscripts".split()
    },
}


class Elements(HTMLParser):
    """The elements and attributes of a piece of HTML, and its text. Every element must close where it should."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.annotations: list[str] = []
        self.num_roots = 0
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(attrs) == len(dict(attrs))
        self.found.append((tag, dict(attrs)))
        self.num_roots += not self._open
        if tag not in VOID:
            self._open.append(tag)
        if tag == "annotation":
            self.annotations.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._open and self._open[-1] == "annotation":
            self.annotations[-1] += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")

    def handle_decl(self, decl: str) -> None:
        raise AssertionError(f"a declaration: {decl}")


def assert_safe(html: str) -> Elements:
    """Only known elements with known attributes, links to the web alone, places that are a footnote's alone."""
    elements = Elements(html)
    for tag, attributes in elements.found:
        assert tag in ATTRIBUTES, tag
        assert attributes.keys() <= ATTRIBUTES[tag], (tag, attributes)
        assert attributes.get("tabindex", "0") == "0"
        assert attributes.get("dir", "auto") in ("auto", "ltr", "rtl")
        if "id" in attributes:
            assert re.fullmatch(r"(fn|fnref)-[\w.-]+", attributes["id"] or "")
        target = attributes.get("href")  # the wall takes away one that is no address, such as http://[x
        if tag == "a" and (target or "").startswith("#"):
            assert re.fullmatch(r"#(fn|fnref)-[\w.-]+", target or "")
        elif tag == "a":
            assert target is None or re.match(r"(https?://|mailto:)", target, re.IGNORECASE)
            assert attributes["rel"] == "noopener noreferrer nofollow"
            assert attributes["target"] == "_blank"
    return elements
