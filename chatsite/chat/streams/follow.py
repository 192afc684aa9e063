"""Following one generation as pieces of a page: what a viewer sees, whichever way it is carried.

Turns the hub's news into frames (status, delta, reset, done), with the answer as finished Markdown blocks and a tail;
`frame_format` knows how. A viewer that comes back with a cursor gets only what is new: the log is read afresh to
rebuild the blocks, and what lies before the cursor is swallowed. The end is told only once it is in Postgres, from the
row itself.

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
from django.utils import timezone, translation

from chatsite.accounts.models import User
from chatsite.accounts.time_zones import zone_of_id
from chatsite.chat.actions import temporary
from chatsite.chat.models import Generation, Message
from chatsite.chat.queries import access
from chatsite.chat.rendering import status_text
from chatsite.chat.rendering.message import message_html
from chatsite.chat.rendering.stream import BlockStream, scope_of
from chatsite.chat.streams.frame_format import ForPage, Plain, Telling
from chatsite.chat.streams.hub import Fresh, Gone, Hub, News, Reset
from chatsite.chat.streams.progress import Progress
from chatsite.chat.text import clean, sha256_of
from inference.coordination.log_view import Cursor
from inference.messages.generation import Event, EventKind

log = structlog.get_logger(__name__)

FRAME_SECONDS = 0.03  # news of so long travel together; the first goes at once
LATER_FRAME_SECONDS = ((8_000, 0.25), (2_000, 0.1))  # the same, of an answer of so many characters: frames cost bytes
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
    hub: Hub,
    user: User,
    generation_id: UUID | str,
    after: Cursor | None = None,
    *,
    for_page: bool = False,
    language: str | None = None,
) -> AsyncGenerator[Frame, None]:
    """Frames of one generation, from behind `after`, until its end has been told. Close the iterator to leave.

    `for_page`: told as our own page wants it, rather than in plain words. `language`: of what its HTML says; None is
    English. It is set for each rendering alone, because many viewers share the event loop and its threads.

    Raises:
        Http404: the generation is not this user's chat, or no longer there.
    """
    row = await in_thread(_row_of, user, generation_id)
    if row.is_active:
        async for frame in _Following(hub, user, row, after, for_page=for_page, language=language).frames():
            yield frame
    else:
        yield await in_thread(_snapshot, row, language)


class _Following:
    """One viewer's way through a generation that was active when it came."""

    def __init__(
        self, hub: Hub, user: User, row: Generation, after: Cursor | None, *, for_page: bool, language: str | None
    ) -> None:
        self._hub = hub
        self._user = user
        self._row = row
        self._generation_id = row.pk
        self._after = after  # what the page has already
        self._mark: str | None = after.mark if after else None
        self._is_for_page = for_page
        self._language = language
        self._shown = self._nothing_shown()
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
                        next_at = clock() + self._pace()
                        yield frame
                        if frame.is_last:
                            return
                if self._progress.is_due() and await self._progress.ask() and (end := await self._snapshot_if_ended()):
                    yield end
                    return
                if status := self._progress.take():
                    yield self._status(status)

    def _status(self, status: dict[str, Any]) -> Frame:
        if not self._is_for_page:
            return Frame("status", status)
        with translation.override(self._language):
            return Frame("status", status_text.told(status))

    def _pace(self) -> float:
        num_chars = self._shown.num_chars
        return next((seconds for chars, seconds in LATER_FRAME_SECONDS if num_chars > chars), FRAME_SECONDS)

    async def _show(self, run: Reset | Gone | _Run) -> AsyncIterator[Frame]:
        if isinstance(run, Gone):
            if end := await self._snapshot_if_ended():
                yield end
            return
        if self._mark is not None and run.mark != self._mark:
            if end := await self._snapshot_if_ended():
                yield end
                return
            self._after, self._shown = None, self._nothing_shown()
            self._progress.restart()
            yield Frame("reset", {"mark": run.mark})
        self._mark = run.mark
        if isinstance(run, Reset):
            return
        self._progress.note(run.events)
        seen = self._after.seq if self._after and self._after.mark == run.mark else 0
        if known := [event for event in run.events if event.seq <= seen]:
            await self._shown.take(known)
            self._shown.telling.forget()
        fresh = [event for event in run.events if event.seq > seen]
        update = await self._shown.take(fresh)
        if fresh and update:
            data = update if self._is_for_page else {"seq": fresh[-1].seq, **update}
            yield Frame("delta", data, id=str(Cursor(run.mark, fresh[-1].seq)))
        if run.events[-1].kind is EventKind.RECORDED:
            row = await in_thread(_row_of, self._user, self._generation_id)
            yield await in_thread(self._end, row, str(Cursor(run.mark, run.events[-1].seq)))

    async def _snapshot_if_ended(self) -> Frame | None:
        row = await in_thread(_row_of, self._user, self._generation_id)
        return None if row.is_active else await in_thread(_snapshot, row, self._language)

    def _nothing_shown(self) -> _ShownText:
        return _ShownText(self._row, ForPage() if self._is_for_page else Plain(), self._language)

    def _end(self, row: Generation, cursor: str) -> Frame:
        """The end, by the row. What was shown is trusted only when it is the stored text to the byte."""
        if row.message and row.message.edited_at:
            return _snapshot(
                row, self._language
            )  # its reader was quick: the text is no longer the one that was written
        if row.message and not self._shown.is_text_of(row):
            log.error("shown text differs from the stored one", generation_id=str(row.pk))
            return _snapshot(row, self._language)
        rest = self._shown.finish()
        shown = {"num_blocks": self._shown.num_blocks} if self._is_for_page else {}
        end = _end_of(row, self._language, with_body=not self._is_for_page)
        return Frame("done", {**end, **shown, "blocks": rest, "tail": ""}, id=cursor)


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

    def __init__(self, row: Generation, telling: Telling, language: str | None) -> None:
        self._language = language
        self.blocks = BlockStream(scope_of(row.message_id or row.pk))
        self.num_blocks = 0
        self.num_chars = 0
        self.telling = telling
        self._sha256 = hashlib.sha256()

    async def take(self, events: Iterable[Event]) -> dict[str, Any]:
        """Add the events' text; what a delta frame says of it, nothing when there is none to be seen."""
        content: list[str] = []
        reasoning: list[str] = []
        for event in events:
            for delta in event.deltas:
                (content if delta.kind == "content" else reasoning).append(delta.text)
        said: dict[str, Any] = {}
        if text := clean("".join(content)):
            self._sha256.update(text.encode())
            self.num_chars += len(text)
            is_long = len(text) > LONG_TEXT_CHARS
            said = await asyncio.to_thread(self._read, text) if is_long else self._read(text)
        if thought := clean("".join(reasoning)):
            said["reasoning"] = thought
        return said

    def finish(self) -> list[str]:
        """The blocks that were still open."""
        with translation.override(self._language):
            rest = self.blocks.finish()
        self.num_blocks += len(rest)
        return rest

    def is_text_of(self, row: Generation) -> bool:
        return self._sha256.hexdigest() == row.content_sha256

    def _read(self, text: str) -> dict[str, Any]:
        with translation.override(self._language):
            update = self.blocks.feed(text)
            self.num_blocks += len(update.blocks)
            return self.telling.take(text, update, self.blocks.view)


def _row_of(user: User, generation_id: UUID | str) -> Generation:
    row = access.generation_of(user, generation_id)
    if row.message is None and row.source != Generation.Source.TEMPORARY:
        raise Http404("A generation of the API has no page.")
    return row


def _snapshot(row: Generation, language: str | None = None) -> Frame:
    message = _message_of(row)
    whole = {"snapshot": True, "content": message.content, "reasoning": message.reasoning, "blocks": [], "tail": ""}
    return Frame("done", {**_end_of(row, language), **whole})


def _end_of(row: Generation, language: str | None, *, with_body: bool = True) -> dict[str, Any]:
    """`with_body`: the article of the end has the answer's text too; without, the page keeps what it shows."""
    message = _message_of(row)
    with translation.override(language), timezone.override(zone_of_id(row.user_id)):
        if row.message:
            html = message_html(row.message, with_body=with_body)
        else:
            html = temporary.answer_html(row, with_body=with_body)
    error = {"code": row.error_code, "message": row.error_message, "retryable": row.is_retryable}
    return {
        "status": row.status,
        "finish_reason": row.finish_reason,
        # The row keeps the hash of what the model wrote; this is that of the text told.
        "content_sha256": sha256_of(message.content) if message.edited_at else row.content_sha256,
        "is_edited": bool(message.edited_at),
        "num_chars": len(message.content),
        "error": error if row.status == Generation.Status.FAILED else None,
        "usage": {
            "prompt_tokens": row.prompt_tokens,
            "cached_tokens": row.cached_tokens,
            "completion_tokens": row.completion_tokens,
            "reasoning_tokens": row.reasoning_tokens,
        },
        "html": str.__str__(html),  # JSON's own str
    }


def _message_of(row: Generation) -> Message:
    return row.message or temporary.answer_of(row)
