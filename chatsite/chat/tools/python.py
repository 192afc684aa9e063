"""Python for reckoning: a snippet in a sandbox without files, network or the machine's clock of other people's work.

Monty is an interpreter of its own in processes of its own: a snippet that breaks it takes down nothing but itself.
"""

from __future__ import annotations

import atexit
import functools
from typing import Annotated

import msgspec
from django.conf import settings
from django.utils.translation import gettext_lazy as _
from pydantic_monty import Monty, MontyCrashedError, MontyError

from chatsite.accounts.models import User
from chatsite.chat.tools.tool import Tool, ToolFailed

MAX_CODE_CHARS = 20_000
MAX_MEMORY_BYTES = 64 * 1024 * 1024
MAX_RECURSION = 200
MAX_PROCESSES = 2  # further calls wait for one of them
MAX_PRINTED_CHARS = 100_000  # beyond, what is printed is dropped while the snippet runs
GRACE_SECONDS = 2.0  # beyond its time a process is killed


class Arguments(msgspec.Struct):
    code: Annotated[str, msgspec.Meta(description="Python source", max_length=MAX_CODE_CHARS)]


def run(user: User, arguments: Arguments) -> str:
    """What the snippet prints, and the value of its last line. Raises ToolFailed with its error."""
    printed: list[str] = []
    num_chars = 0

    def collect(stream: str, text: str) -> None:
        nonlocal num_chars
        if num_chars < MAX_PRINTED_CHARS:
            printed.append(text[: MAX_PRINTED_CHARS - num_chars])
            num_chars += len(text)

    limits = {
        "max_feed_duration_secs": float(settings.SMOLFLEET.max_tool_seconds),
        "max_memory": MAX_MEMORY_BYTES,
        "max_recursion_depth": MAX_RECURSION,
    }
    try:
        with _pool().checkout(limits=limits) as session:  # type: ignore[arg-type]
            value = session.feed_run(arguments.code, print_callback=collect)
            shown = "" if value is None else repr(value)
    except MontyCrashedError:
        raise ToolFailed("The code ended its sandbox; nothing came of it.") from None
    except MontyError as error:
        raise ToolFailed("".join((*printed, str(error)))) from None
    except TimeoutError:
        raise ToolFailed("Too much code is running just now. Try again.") from None
    return "".join((*printed, shown))


@functools.cache
def _pool() -> Monty:
    seconds = settings.SMOLFLEET.max_tool_seconds
    pool = Monty(max_processes=MAX_PROCESSES, checkout_timeout=float(seconds), request_timeout=seconds + GRACE_SECONDS)
    pool.__enter__()
    atexit.register(pool.__exit__, None, None, None)
    return pool


TOOL = Tool(
    name="python",
    title=_("Python"),
    description=(
        "Runs Python code and returns what it prints and the value of its last line. Use it to calculate. It has no "
        "files, network or packages; math, re, json and datetime can be imported."
    ),
    arguments=Arguments,
    run=run,
)
