"""The wall behind the renderer of answers: which elements and attributes come out, whatever went in.

The renderer writes safe HTML by itself; this takes away what it would have missed. No element loads anything, none
carries a style or a script; links go to http, https and mailto alone, or to a footnote of the same message. Called by
`markdown` with each finished block.
"""

from __future__ import annotations

import re

import nh3

from chatsite.chat.rendering import mathml

SAFE_URL = re.compile(r"(?:https?://[^/?#]|mailto:[^/])", re.IGNORECASE)

_TAGS = frozenset(
    "a b blockquote br button code details div em figcaption figure h3 h4 h5 h6 hr kbd li mark ol p pre s span strong "
    "sub summary sup table tbody td th thead tr u ul".split()
)
_ATTRIBUTES: dict[str, set[str]] = {
    "a": {"href", "rel", "target", "class", "title", "id"},
    "button": {"type", "class", "data-act"},
    "code": {"dir"},
    "details": {"open", "dir"},
    "div": {"class", "id", "tabindex", "dir"},
    "ol": {"start", "dir"},
} | {name: {"class", "dir"} for name in ("figure", "li", "p", "span", "sup", "td", "th")}
_ATTRIBUTES |= {name: {"dir"} for name in "blockquote h3 h4 h5 h6 summary table ul".split()}
_MATH_ATTRIBUTES: dict[str, set[str]] = {tag: set(names) for tag, names in mathml.ATTRIBUTES.items()} | {
    "math": {"display"},
    "semantics": set(),
    "annotation": {"encoding"},
}
_PLACE = re.compile(r"(?:fn|fnref)-[\w.-]+")


def _attribute(tag: str, name: str, value: str) -> str | None:
    """The wall's word on links and ids: none leads into the page or names a part of it, but a footnote's."""
    if name == "id":
        return value if _PLACE.fullmatch(value) else None
    if name == "href" and not SAFE_URL.match(value):
        return value if value[:1] == "#" and _PLACE.fullmatch(value[1:]) else None
    if name == "dir":
        return value if value in ("auto", "ltr", "rtl") else None
    return value


_cleaner = nh3.Cleaner(
    tags=set(_TAGS | _MATH_ATTRIBUTES.keys()),
    attributes=_ATTRIBUTES | _MATH_ATTRIBUTES,
    attribute_filter=_attribute,
    url_schemes={"http", "https", "mailto"},
    link_rel=None,  # the renderer sets it
    strip_comments=True,
)


def clean(html: str) -> str:
    """`html` with known elements and attributes alone."""
    return _cleaner.clean(html)
