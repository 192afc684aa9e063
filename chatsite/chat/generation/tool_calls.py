"""The calls of tools that an answer ended with, as `Message.calls` holds them: typed, to and from the row.

Knows the form alone; `tool_calls` makes the calls, `request` tells the model of them, `message` shows them.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from chatsite.chat.models import Message
from inference.messages.generation import ToolCall

MAX_CALLS = 8  # of one answer; further ones are told that they were too many
TOO_MANY = f"An answer may make at most {MAX_CALLS} calls."


class Call(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One call. No result yet: it is still to be made, or being made since `began_at`."""

    id: str
    name: str
    arguments: str
    result: str | None = None
    has_failed: bool = False
    seconds: float = 0.0
    began_at: float = 0.0  # Unix seconds


msgspec.convert(
    [], list[Call]
)  # the first look at the type is here, by one thread: see `inference.messages.serialization`


def of(message: Message) -> list[Call]:
    """The calls of an answer; none where it made none."""
    return msgspec.convert(message.calls or [], list[Call])


def stored(calls: Iterable[Call]) -> list[dict[str, object]]:
    """What a row holds of them."""
    return [msgspec.to_builtins(call) for call in calls]


def begun(made: Iterable[ToolCall]) -> list[Call]:
    """The calls of an answer that has just ended."""
    calls = [Call(id=call.id, name=call.name, arguments=call.arguments) for call in made]
    for call in calls[MAX_CALLS:]:
        call.result, call.has_failed = TOO_MANY, True
    return calls
