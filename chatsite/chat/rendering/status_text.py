"""The phases of an answer being written, in the words of its status row and in the language in force.

A status is what `progress` makes: `phase`, and numbers. Owns the words alone; knows no rows and no streams. Used by
`message` for a page as it is loaded and by `follow` for one that follows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

WORDS = {
    "waiting": gettext_lazy("Waiting"),
    "no_worker": gettext_lazy("No worker is connected; your message is kept and waits"),
    "loading": gettext_lazy("Loading the model"),
    "reading": gettext_lazy("Reading prompt"),
    "thinking": gettext_lazy("Thinking"),
    "calling": gettext_lazy("Calling a tool"),
    "writing": gettext_lazy("Writing"),
    "recovering": gettext_lazy("The worker was lost; another goes on"),
}
LONG_SECONDS = 90  # from here on minutes are told


@dataclass(frozen=True)
class Phase:
    """The status row of an answer being written. `name` is one of those that streams use; `text` says it to people."""

    name: str
    text: str


def phase_of(status: Mapping[str, Any]) -> Phase:
    """The status in words, with its numbers."""
    name = status["phase"]
    words = str(WORDS[name])
    if name == "waiting" and status.get("position"):
        position = status["position"]
        words = _("Place %(place)d of %(number)d") % {"place": position, "number": max(status["of"], position)}
    if (percent := percent_of(status)) is not None:
        words = _("Reading prompt %(percent)d %%") % {"percent": percent}
    if seconds := status.get("eta_seconds"):
        if seconds < LONG_SECONDS:
            words += _(" · about %(seconds).0f s") % {"seconds": math.ceil(seconds)}
        else:
            words += _(" · about %(minutes).0f min") % {"minutes": seconds / 60}
    if name == "writing" and (rate := status.get("tokens_per_second")):
        words += _(" at %(rate).0f tok/s") % {"rate": rate}
    return Phase(name, words)


def percent_of(status: Mapping[str, Any]) -> int | None:
    """How much of the prompt is read, where the status says it."""
    return 100 * status["done"] // status["total"] if status.get("total") else None


def told(status: Mapping[str, Any]) -> dict[str, Any]:
    """The status as our own page wants it: `text` instead of the numbers, and `percent` for its bar."""
    phase = phase_of(status)
    percent = percent_of(status)
    return {"phase": phase.name, "text": phase.text} | ({} if percent is None else {"percent": percent})
