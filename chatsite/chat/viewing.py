"""Following one generation as pieces of a page: what a viewer sees, whichever way it is carried.

Turns the hub's news into frames (status, delta, reset, done), with the answer as finished Markdown blocks and a tail. A
viewer that comes back with a cursor gets only what is new: the log is read from its start to rebuild the blocks, and
what lies before the cursor is swallowed. The end is told only once it is in Postgres, from the row itself.

Owns no connection: the database is asked in a thread for a moment, and nothing of it is held while waiting. Used by
both consumers, on the event loop.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar
from uuid import UUID

import msgspec
import structlog
from channels.db import database_sync_to_async
from django.http import Http404

from chatsite.accounts.models import User
from chatsite.chat import access
from chatsite.chat.fragments import message_html
from chatsite.chat.hub import Fresh, Gone, Hub, News, Reset
from chatsite.chat.markdown import BlockStream, Update
from chatsite.chat.models import Generation, Message
from chatsite.chat.progress import Progress
from chatsite.chat.text import clean
from inference.protocol import Cursor, Event, EventKind

log = structlog.get_logger(__name__)

FRAME_SECONDS = 0.03  # news of so long travel together; the first goes at once
FIRST_SECONDS = 0.1  # after so long without news the first status is told
STATUS_SECONDS = 1.0  # how often the status of a silent generation is looked at
LONG_TEXT_CHARS = 8_192  # Markdown of more than this is rendered in a thread

P = ParamSpec("P")
R = TypeVar("R")


async def in_thread(call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run `call` where it may block; its database connection goes back to the pool at its end."""
    result: R = await database_sync_to_async(call, thread_sensitive=False)(*args, **kwargs)
    return result


@dataclass(frozen=True)
class Frame:
    """One thing to tell the page. `id` is the cursor to come back with; a frame without one does not move it."""

    event: str  # status | delta | reset | done
    data: dict[str, Any]
    id: str = ""

    @property
    def is_last(self) -> bool:
        return self.event == "done"

    def to_sse(self) -> bytes:
        head = f"event: {self.event}\n" + (f"id: {self.id}\n" if self.id else "")
        return head.encode() + b"data: " + msgspec.json.encode(self.data) + b"\n\n"


async def frames_of(
    hub: Hub, user: User, generation_id: UUID | str, after: Cursor | None = None
) -> AsyncGenerator[Frame, None]:
    """Frames of one generation, from behind `after`, until its end has been told. Close the iterator to leave.

    Raises:
        Http404: the generation is not this user's chat, or no longer there.
    """
    row = await in_thread(_row_of, user, generation_id)
    if row.is_active:
        async for frame in _Following(hub, user, row, after).frames():
            yield frame
    else:
        yield await in_thread(_snapshot, row)


class _Following:
    """One viewer's way through a generation that was active when it came."""

    def __init__(self, hub: Hub, user: User, row: Generation, after: Cursor | None) -> None:
        self._hub = hub
        self._user = user
        self._generation_id = row.pk
        self._after = after  # what the page has already
        self._mark: str | None = after.mark if after else None
        self._shown = _ShownText()
        self._progress = Progress(hub.client, hub.fleet, row.pk, row.model)

    async def frames(self) -> AsyncIterator[Frame]:
        clock = asyncio.get_running_loop().time
        next_at = clock()
        patience = FIRST_SECONDS
        with self._hub.viewer(self._generation_id) as viewer:
            while True:
                await asyncio.sleep(max(0.0, next_at - clock()))
                news = await viewer.batch(patience)
                patience = STATUS_SECONDS
                for run in _runs(news):
                    async for frame in self._show(run):
                        next_at = clock() + FRAME_SECONDS
                        yield frame
                        if frame.is_last:
                            return
                if self._progress.is_due() and await self._progress.ask() and (end := await self._snapshot_if_ended()):
                    yield end
                    return
                if status := self._progress.take():
                    yield Frame("status", status)

    async def _show(self, run: Reset | Gone | _Run) -> AsyncIterator[Frame]:
        if isinstance(run, Gone):
            if end := await self._snapshot_if_ended():
                yield end
            return
        if self._mark is not None and run.mark != self._mark:
            if end := await self._snapshot_if_ended():
                yield end
                return
            self._after, self._shown = None, _ShownText()
            self._progress.restart()
            yield Frame("reset", {"mark": run.mark})
        self._mark = run.mark
        if isinstance(run, Reset):
            return
        self._progress.note(run.events)
        seen = self._after.seq if self._after and self._after.mark == run.mark else 0
        await self._shown.take(event for event in run.events if event.seq <= seen)
        fresh = [event for event in run.events if event.seq > seen]
        update = await self._shown.take(fresh)
        if fresh and update is not None:
            yield Frame("delta", {"seq": fresh[-1].seq, **update}, id=str(Cursor(run.mark, fresh[-1].seq)))
        if run.events[-1].kind is EventKind.RECORDED:
            row = await in_thread(_row_of, self._user, self._generation_id)
            yield await in_thread(self._end, row, str(Cursor(run.mark, run.events[-1].seq)))

    async def _snapshot_if_ended(self) -> Frame | None:
        row = await in_thread(_row_of, self._user, self._generation_id)
        return None if row.is_active else await in_thread(_snapshot, row)

    def _end(self, row: Generation, cursor: str) -> Frame:
        """The end, by the row. What was shown is trusted only when it is the stored text to the byte."""
        if not self._shown.is_text_of(row):
            log.error("shown text differs from the stored one", generation_id=str(row.pk))
            return _snapshot(row)
        return Frame("done", {**_end_of(row), "blocks": self._shown.blocks.finish(), "tail": ""}, id=cursor)


@dataclass
class _Run:
    """Events of one log that came together."""

    mark: str
    events: list[Event]


def _runs(news: list[News]) -> list[Reset | Gone | _Run]:
    runs: list[Reset | Gone | _Run] = []
    for item in news:
        if not isinstance(item, Fresh):
            runs.append(item)
        elif runs and isinstance(runs[-1], _Run) and runs[-1].mark == item.mark:
            runs[-1].events.append(item.event)
        else:
            runs.append(_Run(item.mark, [item.event]))
    return runs


class _ShownText:
    """The answer as far as the page has it: as blocks, and as a hash to compare with the stored one."""

    def __init__(self) -> None:
        self.blocks = BlockStream()
        self._sha256 = hashlib.sha256()

    async def take(self, events: Iterable[Event]) -> dict[str, Any] | None:
        """Add the events' text; what a delta frame says of it, None when they have none."""
        content: list[str] = []
        reasoning: list[str] = []
        for event in events:
            for delta in event.deltas:
                (content if delta.kind == "content" else reasoning).append(delta.text)
        said: dict[str, Any] = {}
        if text := clean("".join(content)):
            self._sha256.update(text.encode())
            update = await self._feed(text)
            said["content"] = text
            if update.blocks:
                said |= {"blocks": update.blocks, "tail": update.tail}
        if thought := clean("".join(reasoning)):
            said["reasoning"] = thought
        return said or None

    def is_text_of(self, row: Generation) -> bool:
        return self._sha256.hexdigest() == row.content_sha256

    async def _feed(self, text: str) -> Update:
        if len(text) > LONG_TEXT_CHARS:
            return await asyncio.to_thread(self.blocks.feed, text)
        return self.blocks.feed(text)


def _row_of(user: User, generation_id: UUID | str) -> Generation:
    row = access.generation_of(user, generation_id)
    if row.message is None:
        raise Http404("A generation of the API has no page.")
    return row


def _snapshot(row: Generation) -> Frame:
    message = _message_of(row)
    whole = {"snapshot": True, "content": message.content, "reasoning": message.reasoning, "blocks": [], "tail": ""}
    return Frame("done", {**_end_of(row), **whole})


def _end_of(row: Generation) -> dict[str, Any]:
    message = _message_of(row)
    error = {"code": row.error_code, "message": row.error_message, "retryable": row.is_retryable}
    return {
        "status": row.status,
        "finish_reason": row.finish_reason,
        "content_sha256": row.content_sha256,
        "num_chars": len(message.content),
        "error": error if row.status == Generation.Status.FAILED else None,
        "usage": {
            "prompt_tokens": row.prompt_tokens,
            "cached_tokens": row.cached_tokens,
            "completion_tokens": row.completion_tokens,
            "reasoning_tokens": row.reasoning_tokens,
        },
        "html": str.__str__(message_html(message)),  # a plain str: JSON knows no SafeString
    }


def _message_of(row: Generation) -> Message:
    assert row.message is not None, "_row_of lets no other through"
    return row.message
