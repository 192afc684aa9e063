r"""Reactions in formulas: `\ce{2H2 + O2 -> 2H2O}` in the words of plain TeX, which the converter knows.

The basics of the mhchem package: elements, numbers below and charges above, numbers in front, fractions, isotopes,
states, arrows with words over and under them, bonds, dots of hydrates, groups in brackets, gas and precipitate. What is
none of that is left out of the translation: the formula then shows its source. Reads its input once, from left to
right. Called by `mathml`.
"""

from __future__ import annotations

import re

_COMMAND = re.compile(r"\\ce\s*\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_ARROWS = {
    "<=>>": r"\rightleftharpoons",
    "<<=>": r"\rightleftharpoons",
    "<=>": r"\rightleftharpoons",
    "<-->": r"\rightleftarrows",
    "<->": r"\leftrightarrow",
    "->": r"\rightarrow",
    "<-": r"\leftarrow",
}
_STRETCHED = {r"\rightarrow": r"\xrightarrow", r"\leftarrow": r"\xleftarrow"}
_TOKEN = re.compile(
    r"""(?P<space>\s+)
    |(?P<arrow><=>>|<<=>|<=>|<-->|<->|->|<-)(?:\[(?P<over>[^\[\]]*)\])?(?:\[(?P<under>[^\[\]]*)\])?
    |(?P<state>\((?:aq|s|l|g|cr|am|v)\))
    |(?P<sign>(?<=\s)(?:v|\^)(?=\s|\Z))
    |(?P<above>\^)(?:\{(?P<above_group>[^{}]*)\}|(?P<above_word>\d*[+-]|\d+|[A-Za-z.*]))
    |(?P<below>_)(?:\{(?P<below_group>[^{}]*)\}|(?P<below_word>\d+|[A-Za-z]))
    |(?P<element>[A-Z][a-z]?|e(?=\^?-))
    |(?P<fraction>\d+/\d+)
    |(?P<number>\d+(?:\.\d+)?)
    |(?P<letter>[a-z]+)
    |(?P<dot>\*|\.)
    |(?P<bond>=|\#|-|\\bond\{[-=\#~.1-3]+\})
    |(?P<plus>\+)
    |(?P<open>[(\[]|\\\{)|(?P<close>[)\]]|\\\})
    |(?P<tex>\$[^$]*\$|\\[A-Za-z]+\s?|\{|\}|,|/|:|;)
    """,
    re.VERBOSE,
)
_BONDS = {"-": "-", "=": "=", "#": r"\equiv "}


def spelled(body: str) -> str:
    r"""`body` with each `\ce{…}` in plain TeX; one that is not understood stays as it is."""
    pieces: list[str] = []
    begin = 0
    while match := _COMMAND.search(body, begin):
        end = _group_end(body, match.end())
        told = _told(body[match.end() : end - 1]) if end else None
        if told is None:
            return body
        pieces += [body[begin : match.start()], "{", told, "}"]
        begin = end
    return "".join([*pieces, body[begin:]])


def _group_end(body: str, begin: int) -> int:
    """Behind the brace that closes the group whose content begins at `begin`; 0: none does."""
    depth = 1
    for match in _BRACE.finditer(body, begin):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if not depth:
            return match.end()
    return 0


class _Reaction:
    """What was said so far, and what may follow it."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.follows = ""  # "element" or "close" when a number below or a charge may follow at once

    def take(self, match: re.Match[str]) -> bool:
        """Say one more thing in TeX; False: it makes no sense here."""
        kind = match.lastgroup or ""
        word = match[0]
        before, self.follows = self.follows, ""
        if match["arrow"]:
            self._say_arrow(match)
        elif match["above"]:
            charge = match["above_group"] if match["above_group"] is not None else match["above_word"]
            self._say_script("^", charge, before)
        elif match["below"]:
            index = match["below_group"] if match["below_group"] is not None else match["below_word"]
            self._say_script("_", index, before)
        elif kind == "space":
            self.pieces.append(" ")
        elif kind == "state":
            self.pieces.append(rf"\,\text{{{word}}}")
        elif kind in ("element", "letter"):
            self.pieces.append(_upright(word))
            self.follows = "element"
        elif kind == "number":
            self.pieces.append(f"_{{{word}}}" if before else rf"{word}\,")
            self.follows = "index" if before else ""
        elif kind == "fraction":
            above, below = word.split("/")
            self.pieces.append(rf"\frac{{{above}}}{{{below}}}\,")
        elif kind == "dot":
            self.pieces.append(r"\cdot ")
        elif kind == "bond":
            return self._say_bond(word, before, match)
        elif kind == "plus":
            self._say_plus(before, match)
        elif kind in ("open", "close"):
            self.pieces.append(word)
            self.follows = "close" if kind == "close" else ""
        elif kind == "sign":
            self.pieces.append(r"\uparrow " if word == "^" else r"\downarrow ")
        else:
            self.pieces.append(word.strip("$"))
            self.follows = "close" if word == "}" else ""
        return True

    def _say_arrow(self, match: re.Match[str]) -> None:
        arrow = _ARROWS[match["arrow"]]
        over, under = match["over"], match["under"]
        if not over and not under:
            self.pieces.append(f" {arrow} ")
            return
        words = [_told(part or "") or rf"\text{{{part}}}" for part in (over, under)]
        if arrow in _STRETCHED:
            below = f"[{words[1]}]" if under else ""
            self.pieces.append(f" {_STRETCHED[arrow]}{below}{{{words[0] if over else ''}}} ")
            return
        drawn = rf"\overset{{{words[0]}}}{{{arrow}}}" if over else arrow
        self.pieces.append(rf" \underset{{{words[1]}}}{{{drawn}}} " if under else f" {drawn} ")

    def _say_script(self, mark: str, words: str, before: str) -> None:
        base = "" if before else "{}"  # an isotope's numbers stand before their element
        shown = words.replace("*", r"\ast ").replace(".", r"\bullet ")
        self.pieces.append(f"{base}{mark}{{{_upright(shown) if shown.isalpha() else shown}}}")
        self.follows = "index"

    def _say_bond(self, word: str, before: str, match: re.Match[str]) -> bool:
        rest = match.string[match.end() : match.end() + 1]
        if word == "-" and before and (not rest or rest in " )]}"):
            self.pieces.append("^{-}")
            self.follows = "index"
            return True
        sign = word[6:-1] if word.startswith("\\bond") else word
        sign = {"1": "-", "2": "=", "3": "#"}.get(sign, sign)
        if sign not in _BONDS:
            return False
        self.pieces.append(_BONDS[sign])
        return True

    def _say_plus(self, before: str, match: re.Match[str]) -> None:
        rest = match.string[match.end() : match.end() + 1]
        if before and (not rest or rest in " )]}") and match.string[match.start() - 1] != " ":
            self.pieces.append("^{+}")
            self.follows = "index"
        else:
            self.pieces.append("+")


def _upright(word: str) -> str:
    return rf"\mathrm{{{word}}}" if len(word) == 1 else rf"\text{{{word}}}"  # which keeps letters together


def _told(words: str) -> str | None:
    """One reaction in TeX; None: it is not understood."""
    reaction = _Reaction()
    at = 0
    words = words.strip()
    while at < len(words):
        match = _TOKEN.match(words, at)
        if match is None or not reaction.take(match):
            return None
        at = match.end()
    return "".join(reaction.pieces)
