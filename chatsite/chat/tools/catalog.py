"""The tools a chat may switch on, by name, and the answering of one call. Which there are is said by `TOOLS`."""

from __future__ import annotations

import time
from dataclasses import dataclass

import structlog
from django.conf import settings

from chatsite.accounts.models import User
from chatsite.chat.text import clean
from chatsite.chat.tools import python, search_chats
from chatsite.chat.tools import time as clock
from chatsite.chat.tools.tool import Tool, ToolFailed
from inference.messages.generation import ToolSpec

log = structlog.get_logger(__name__)

MAX_RESULT_CHARS = 8_000  # more would fill a small model's context
CUT = "\n… (cut here)"

_ALL = {tool.name: tool for tool in (python.TOOL, clock.TOOL, search_chats.TOOL)}


@dataclass(frozen=True)
class Result:
    """What a call came to, as model and reader are told it."""

    text: str
    has_failed: bool
    seconds: float


def offered() -> tuple[Tool, ...]:
    """The tools of this site, as its operator lists them."""
    return tuple(_ALL[name] for name in settings.SMOLFLEET.tools)


def specs() -> tuple[ToolSpec, ...]:
    return tuple(tool.spec for tool in offered())


def title_of(name: str) -> str:
    """What people call it; its own name where there is no such tool any more."""
    return str(_ALL[name].title) if name in _ALL else name


def answer(user: User, name: str, arguments: str) -> Result:
    """Answer one call. A call that cannot be answered fails alone: the result says why."""
    began = time.monotonic()
    has_failed = False
    try:
        tool = next((tool for tool in offered() if tool.name == name), None)
        if tool is None:
            raise ToolFailed(f"There is no tool {name[:60]!r}.")
        text = tool.run(user, tool.decode(arguments))
    except ToolFailed as failure:
        has_failed, text = True, str(failure)
    except Exception:
        log.exception("tool failed", tool=name)
        has_failed, text = True, "The tool failed; this is no fault of the call."
    text = clean(text).strip()
    if len(text) > MAX_RESULT_CHARS:
        text = text[: MAX_RESULT_CHARS - len(CUT)] + CUT
    return Result(text, has_failed, time.monotonic() - began)
