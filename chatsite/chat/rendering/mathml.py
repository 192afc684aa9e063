"""LaTeX of one formula -> MathML that a browser draws without a script, or nothing when it cannot be told for sure.

Owns the conversion's bounds and what of its output is let through: known elements, with attributes of known shapes. The
converting library knows neither hostile input nor limits (its own output is not even escaped), so its tree is written
out here. What it lacks is spelled in what it has: reactions (`chemistry`), signs within words. Definitions of macros,
links and styles are refused: they can grow without bound or lead away. What is refused shows its source. The source
goes along as an annotation, so that copying gives it back. Called by `markdown` on any thread.
"""

from __future__ import annotations

import re
from functools import lru_cache
from html import escape
from xml.etree.ElementTree import Element

from latex2mathml.converter import Converter

from chatsite.chat.rendering import chemistry

MAX_CHARS = 1_500  # of a formula that is converted: at most 25 ms
MAX_DEPTH = 40  # of elements
MAX_GROUPS = 25  # of braces, \left and \begin within each other
CACHED_FORMULAS = 1_024

_SIZE = re.compile(r"(?:0|(?:[0-4](?:\.\d{1,3})?|0?\.\d{1,3})em)")  # a formula may not reach out of its place
_FLAG = re.compile(r"true|false")
_ZERO = re.compile(r"0(?:px|em)?")
_LEVEL = re.compile(r"[+-]?[0-3]")
_LETTERS = re.compile(r"[a-z -]{1,60}")
_NUMBER = re.compile(r"[0-3]\.\d{1,3}em")

ATTRIBUTES: dict[str, dict[str, re.Pattern[str]]] = {
    "math": {},
    "mrow": {},
    "mi": {"mathvariant": _LETTERS},
    "mn": {"mathvariant": _LETTERS},
    "mo": {
        **dict.fromkeys(("stretchy", "fence", "accent", "separator", "movablelimits"), _FLAG),
        **dict.fromkeys(("minsize", "maxsize", "lspace", "rspace"), _NUMBER),
        "form": _LETTERS,
    },
    "mtext": {"mathvariant": _LETTERS},
    "mspace": {"width": _SIZE, "height": _SIZE, "depth": _SIZE},
    "mfrac": {"linethickness": _ZERO},
    "mstyle": {"displaystyle": _FLAG, "scriptlevel": _LEVEL, "mathsize": re.compile(r"[0-2]\.\d{1,2}em|1em")},
    "mpadded": {"width": _ZERO, "height": _ZERO, "depth": _ZERO},
    "mphantom": {},
    "menclose": {"notation": _LETTERS},
    "mtable": {"displaystyle": _FLAG},
    "mtr": {},
    "mtd": {"columnalign": _LETTERS},
    "mover": {"accent": _FLAG},
    "munder": {"accentunder": _FLAG},
    "munderover": {},
} | {tag: {} for tag in ("msqrt", "mroot", "msub", "msup", "msubsup", "mmultiscripts")}

_DELIMITED = {"$$": "$$", "\\[": "\\]", "\\(": "\\)", "$": "$"}
_DISPLAYED = frozenset({"$$", "\\["})
_ENVIRONMENT = re.compile(r"\\begin\{([a-zA-Z]+\*?)\}.*\\end\{\1\}\Z", re.DOTALL)
_REFUSED = re.compile(
    r"\\(?:newcommand|renewcommand|providecommand|def|gdef|edef|let|DeclareMathOperator|newenvironment|href|url|class"
    r"|cssId|style|includegraphics|require|rule|unicode|verb|char)(?![a-zA-Z])"
)
_SPELLED = (
    (re.compile(r"\\begin\s*\{(?:alignat|alignedat)\*?\}\s*\{\d{1,2}\}"), r"\\begin{align*}"),
    (re.compile(r"\\begin\s*\{(?:aligned|gathered)\}\s*\[[tbc]\]"), r"\\begin{align*}"),
    (
        re.compile(r"\\(begin|end)\s*\{(?:(?:al|flal)ign|aligned|alignat|alignedat|eqnarray|split)\*?\}"),
        r"\\\1{align*}",
    ),
    (re.compile(r"\\(begin|end)\s*\{(?:gathered|gather|multline)\*?\}"), r"\\\1{matrix}"),
    (re.compile(r"\\(begin|end)\s*\{[dr]cases\*?\}"), r"\\\1{cases}"),
    (re.compile(r"\\(?:begin|end)\s*\{(?:equation|displaymath|math)\*?\}"), ""),
    (re.compile(r"\\(?:label|nonumber|notag)\b(?:\{[^{}]*\})?"), ""),
    (re.compile(r"\\(?:tfrac|dfrac)(?![a-zA-Z])"), r"\\frac"),
    (re.compile(r"\\(?:displaystyle|textstyle)(?![a-zA-Z])"), ""),
)
_TEXT = re.compile(
    r"(\\(?:text(?:rm|bf|it|tt|sf|normal|up)?|mbox|operatorname\*?|math(?:rm|bf|it|tt|sf))\s*\{)((?:[^{}\\]|\\[^a-zA-Z])*)\}"
)
_SIGN = re.compile(r"\\([_%&#${}])")
_SIGNS = {sign: chr(0xE000 + index) for index, sign in enumerate("_%&#${}")}  # which the converter takes for letters
_KEPT_SIGNS = {ord(kept): sign for sign, kept in _SIGNS.items()}
_OPENING = re.compile(r"\\left(?![a-zA-Z])|\\begin(?![a-zA-Z])|\{")
_CLOSING = re.compile(r"\\right(?![a-zA-Z])|\\end(?![a-zA-Z])|\}")
_GROUP = re.compile(r"\\(?:left|right|begin|end)(?![a-zA-Z])|\\.|[{}]", re.DOTALL)
_CHARACTER = re.compile(r"&#x([0-9A-Fa-f]{1,6});")
_COMMAND = re.compile(r"\\[A-Za-z]|\\$")


class _Unclear(Exception):
    """The formula cannot be shown for sure as it is meant."""


@lru_cache(maxsize=CACHED_FORMULAS)
def mathml(source: str) -> str | None:
    """The `<math>` element of a formula with its delimiters, the source in its annotation; None: show the source."""
    if len(source) > MAX_CHARS + 4:
        return None
    opener = next((known for known in _DELIMITED if source.startswith(known)), "")
    closer = _DELIMITED.get(opener, "")
    body = source[len(opener) : -len(closer) if closer else None].strip()
    is_environment = not opener and _ENVIRONMENT.match(body) is not None
    if not (opener or is_environment) or not source.endswith(closer) or not body or _REFUSED.search(body):
        return None
    body = _spelled(body)
    if len(body) > MAX_CHARS or not _is_balanced(body):
        return None
    is_displayed = is_environment or opener in _DISPLAYED
    try:
        row = _row(body, is_displayed)
    except _Unclear:
        return None
    display = ' display="block"' if is_displayed else ""
    annotation = f'<annotation encoding="application/x-tex">{escape(source, quote=False)}</annotation>'
    return f"<math{display}><semantics>{row}{annotation}</semantics></math>"


def _spelled(body: str) -> str:
    """`body` in the words that the converter knows."""
    body = chemistry.spelled(body)
    for pattern, replacement in _SPELLED:
        body = pattern.sub(replacement, body)
    return _TEXT.sub(lambda match: f"{match[1]}{_SIGN.sub(lambda sign: _SIGNS[sign[1]], match[2])}}}", body)


def _row(body: str, is_displayed: bool) -> str:
    tree = _tree(body, is_displayed)
    if any(element.get("linebreak") for element in tree.iter("mspace")):
        if not is_displayed:
            raise _Unclear
        tree = _tree(rf"\begin{{matrix}}{body}\end{{matrix}}", is_displayed)  # lines of their own
    pieces: list[str] = []
    for child in tree:
        _write(child, pieces, 1)
    return "".join(pieces)


def _tree(body: str, is_displayed: bool) -> Element:
    try:
        return Converter(display="block" if is_displayed else "inline").convert_to_element(body)
    except Exception as error:  # the library raises whatever a malformed formula leads it to
        raise _Unclear from error


def _write(element: Element, pieces: list[str], depth: int) -> None:
    allowed = ATTRIBUTES.get(element.tag)
    if allowed is None or depth > MAX_DEPTH or element.get("linebreak"):
        raise _Unclear
    pieces.append(f"<{element.tag}")
    for name, value in element.items():
        pattern = allowed.get(name)
        if pattern is not None and pattern.fullmatch(value):
            pieces.append(f' {name}="{value}"')
    pieces.append(">")
    if element.text:
        pieces.append(_text(element))
    for child in element:
        _write(child, pieces, depth + 1)
    pieces.append(f"</{element.tag}>")


def _text(element: Element) -> str:
    """Words of a leaf. The library leaves what it does not know as it stands, and names characters by their codes."""
    raw = element.text or ""
    if _COMMAND.search(raw) or (element.tag != "mtext" and raw == "&"):
        raise _Unclear
    shown = _CHARACTER.sub(lambda match: _character(int(match[1], 16)), raw).translate(_KEPT_SIGNS)
    return escape(shown, quote=False)


def _character(code: int) -> str:
    if code > 0x10FFFF or 0xD800 <= code < 0xE000 or code < 0x20:
        raise _Unclear
    return chr(code)


def _is_balanced(body: str) -> bool:
    """Whether groups close as they open, and not too many lie within each other."""
    open_groups: list[bool] = []  # of each: whether it is a brace
    for match in _GROUP.finditer(body):
        word = match[0]
        if _OPENING.fullmatch(word):
            open_groups.append(word == "{")
            if len(open_groups) > MAX_GROUPS:
                return False
        elif _CLOSING.fullmatch(word) and (not open_groups or open_groups.pop() != (word == "}")):
            return False
    return not open_groups
