"""A generation's log as it was read, and where a viewer stands in it. The log itself is kept by `event_log`.

Workers, the site worker, the hub and the API all read answers through it. Plain values; never written to Redis.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import ClassVar, Literal

import msgspec

from inference.messages.generation import CALL_TRUNCATED, Delta, Event, EventKind, Finish, ToolCall, ToolCallDelta


class Cursor(msgspec.Struct, frozen=True):
    """Where a viewer stands: the log's mark and the newest seq it has. Text form `<mark>:<seq>` is the SSE id."""

    mark: str
    seq: int

    _TEXT: ClassVar = re.compile(r"([0-9a-f]{1,32}):(\d{1,18})")

    def __str__(self) -> str:
        return f"{self.mark}:{self.seq}"

    @classmethod
    def parse(cls, text: str) -> Cursor | None:
        """The cursor that `text` spells, or None when it spells none (a viewer then starts from the beginning)."""
        match = cls._TEXT.fullmatch(text)
        return cls(match[1], int(match[2])) if match else None


class Log(msgspec.Struct, frozen=True):
    """A generation's log as read: its mark, and the events asked for, oldest first."""

    mark: str
    events: tuple[Event, ...]

    @property
    def finish(self) -> Finish | None:
        return next((e.finish for e in reversed(self.events) if e.kind is EventKind.FINISH), None)

    @property
    def is_recorded(self) -> bool:
        return any(e.kind is EventKind.RECORDED for e in self.events)

    def text(self, kind: Literal["content", "reasoning"]) -> str:
        return "".join(d.text for e in self.events for d in e.deltas if d.kind == kind)

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The good calls so far, as far as they are written."""
        return tool_calls_of(delta for event in self.events for delta in event.deltas)


def tool_calls_of(deltas: Iterable[Delta], *, with_cut: bool = False) -> tuple[ToolCall, ...]:
    """The calls that `deltas` add up to, in order; failed ones are left out. `with_cut` keeps the one in whose middle
    the answer was cut, as far as it goes."""
    calls: dict[int, list[ToolCallDelta]] = {}
    failed: set[int] = set()
    for piece in (delta.call for delta in deltas if delta.call is not None):
        pieces = calls.setdefault(piece.index, [])
        is_cut = piece.error is not None and piece.error.code == CALL_TRUNCATED
        if piece.error is not None and not (with_cut and is_cut and pieces):
            failed.add(piece.index)
        pieces.append(piece)
    return tuple(_call_of(pieces) for index, pieces in sorted(calls.items()) if index not in failed)


def _call_of(pieces: Sequence[ToolCallDelta]) -> ToolCall:
    first = pieces[0]  # has its id and name
    return ToolCall(first.id, first.name, "".join(piece.arguments for piece in pieces))
