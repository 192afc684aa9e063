"""Blanks of a prompt: `{{name}}` or `{{name|default}}`, asked for before the prompt enters the message box.

Anything else between braces is text: a prompt may well speak of code. Values are put in as they are; a blank in a value
stays text. Knows no rows and no forms.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

MAX_BLANKS = 20

_BLANK = re.compile(r"\{\{[ \t]*([^\W\d][\w-]{0,39})[ \t]*(?:\|([^{}\n]{0,500}))?\}\}")


@dataclass(frozen=True)
class Blank:
    name: str
    default: str = ""


def blanks_of(text: str) -> list[Blank]:
    """Each name once, in the order in which it first appears; its default is the first that is given."""
    found: dict[str, str] = {}
    for name, default in _BLANK.findall(text):
        found[name] = found.get(name) or default.strip()
    return [Blank(name, default) for name, default in found.items()]


def fill(text: str, values: Mapping[str, str]) -> str:
    """`text` with a value in each blank; a name without one takes its default."""
    defaults = {blank.name: blank.default for blank in blanks_of(text)}
    return _BLANK.sub(lambda found: values.get(found[1], "") or defaults[found[1]], text)
