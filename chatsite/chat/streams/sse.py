"""Server-sent events over HTTP: an answer, from the last event the page has, and the changes in a person's list.

The response is written by a task of its own, so that `http.disconnect` is heard at once: leaving costs nothing, and
never stops a generation. Ids give no access: each (re)connect is authorised by the owner join, and signing out ends it
at once (`revocation`).
No database connection is held meanwhile. Django's middleware does not run here, so headers and checks are repeated.

    EventStream        the request, the person's seat, the pace, the end
    GenerationEvents   frames of one generation
    ListEvents         hints of what changed in the list of conversations
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any
from urllib.parse import parse_qs

import structlog
from channels.exceptions import StopConsumer
from channels.generic.http import AsyncHttpConsumer
from django.db import DatabaseError
from django.http import Http404

from chatsite.accounts.models import User
from chatsite.chat import notify
from chatsite.chat.queries import access
from chatsite.chat.streams.cancel import end_tasks
from chatsite.chat.streams.follow import Frame, frames_of, in_thread
from chatsite.chat.streams.hub import hub
from chatsite.chat.streams.language import language_of
from chatsite.chat.streams.limits import RECHECK_SECONDS, Budget, TooManyStreams, seat
from chatsite.chat.streams.revocation import until_revoked
from inference.coordination.log_view import Cursor

log = structlog.get_logger(__name__)

PING_SECONDS = 15.0  # also how a half-open connection is found: by writing to it
RETRY_MS = 1_000
MAX_ID_CHARS = 128

NO_CHANNEL_LAYER = "none: tokens never take a channel layer"
SECURITY_HEADERS = [
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"same-origin"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
]
STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]
TEXT_HEADERS = [(b"content-type", b"text/plain; charset=utf-8"), (b"cache-control", b"no-store")]


class EventStream(AsyncHttpConsumer):  # type: ignore[misc]  # channels has no types
    """A GET that is answered by frames until the last, or until the page is to come again."""

    channel_layer_alias = NO_CHANNEL_LAYER

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._task: asyncio.Task[None] | None = None
        self._has_begun = False
        self._budget = Budget()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """As every consumer, but ending by itself once the response is complete."""
        self._has_answered = asyncio.Event()

        async def receive_or_end() -> Any:
            coming = asyncio.ensure_future(receive())
            ending = asyncio.ensure_future(self._has_answered.wait())
            try:
                await asyncio.wait({coming, ending}, return_when=asyncio.FIRST_COMPLETED)
                return coming.result() if coming.done() else {"type": "http.disconnect"}
            finally:
                coming.cancel()
                ending.cancel()

        try:
            await super().__call__(scope, receive_or_end, send)
        finally:
            await self._end_task()

    async def http_request(self, message: dict[str, Any]) -> None:
        if self._task is None:  # the body, if there is one, is of no interest
            self._task = asyncio.create_task(self._answer(), name="sse")

    async def http_disconnect(self, message: dict[str, Any]) -> None:
        await self._end_task()
        raise StopConsumer

    async def _end_task(self) -> None:
        await end_tasks(self._task)

    async def _answer(self) -> None:
        try:
            await self._stream()
        except TooManyStreams:
            await self._refuse(429, b"Too many streams are open.", [(b"retry-after", b"5")])
        except Http404:
            await self._refuse(404, b"There is nothing here.")
        except DatabaseError as error:
            log.warning("stream without database", reason=type(error).__name__)
            await self._refuse(503, b"The database is away.", [(b"retry-after", b"2")])
        except Exception:
            log.exception("stream failed")
            await self._refuse(500, b"Something went wrong.")
        finally:
            self._has_answered.set()

    async def _stream(self) -> None:
        user = self.scope["user"]
        if self.scope["method"] != "GET":
            await self._refuse(405, b"Only GET.", [(b"allow", b"GET")])
            return
        if not user.is_authenticated:
            await self._refuse(401, b"Sign in first.")
            return
        if not await in_thread(access.may_enter, user):
            await self._refuse(401, b"Set up your second factor first.")
            return
        may_go_on = functools.partial(is_still_signed_in, self.scope, user)
        revoked = asyncio.create_task(until_revoked(user.pk, may_go_on, every=RECHECK_SECONDS), name="sse guard")
        sending = asyncio.create_task(self._send_all(user), name="sse frames")
        try:
            done, _ = await asyncio.wait({sending, revoked}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end_tasks(sending, revoked)
        if sending in done:
            sending.result()
            await self.send_body(b"")
        else:
            revoked.result()
            await self._refuse(401, b"Sign in first.")

    async def _send_all(self, user: User) -> None:
        with seat(user.pk):
            async with contextlib.aclosing(self._frames(user)) as frames:
                await self._send_frames(frames)

    def _frames(self, user: User) -> AsyncGenerator[Frame, None]:
        """What to send. The first comes before any header is sent, so it may be a refusal instead."""
        raise NotImplementedError

    async def _send_frames(self, frames: AsyncIterator[Frame]) -> None:
        """Frames until the last; a comment when there is nothing to say; the end when the budget is spent."""
        coming = asyncio.ensure_future(anext(frames))  # the first is awaited before the headers: it may be a refusal
        try:
            while not self._budget.is_spent:
                done, _ = await asyncio.wait({coming}, timeout=PING_SECONDS)
                if not done:
                    await self._send(b": ping\n\n")
                else:
                    frame = coming.result()
                    await self._send(frame.to_sse())
                    if frame.is_last:
                        return
                    coming = asyncio.ensure_future(anext(frames))
            await self._send(b"event: again\ndata: {}\n\n")  # no failure: the page need not wait before it comes back
        finally:
            await end_tasks(coming)

    async def _send(self, body: bytes) -> None:
        if not self._has_begun:
            self._has_begun = True
            await self.send_headers(headers=STREAM_HEADERS + SECURITY_HEADERS)
            body = f"retry: {RETRY_MS}\n\n".encode() + body
        self._budget.spend(len(body))
        await self.send_body(body, more_body=True)

    async def _refuse(self, status: int, body: bytes, headers: list[tuple[bytes, bytes]] | None = None) -> None:
        if self._has_begun:
            await self.send_body(b"")  # an end without `done` means: come back with your cursor
        else:
            await self.send_response(status, body, headers=[*TEXT_HEADERS, *SECURITY_HEADERS, *(headers or [])])


class GenerationEvents(EventStream):
    """GET /chat/generations/<id>/events"""

    def _frames(self, user: User) -> AsyncGenerator[Frame, None]:
        generation_id = self.scope["url_route"]["kwargs"]["generation_id"]
        return frames_of(
            hub(),
            user,
            generation_id,
            self._cursor(),
            for_page=self._asked("as") == "page",
            language=language_of(self.scope),
        )

    def _cursor(self) -> Cursor | None:
        """Where the page stands. A browser that reconnects by itself says it in the header, which is then the newer."""
        header = dict(self.scope["headers"]).get(b"last-event-id", b"").decode("latin-1")
        return Cursor.parse(header[:MAX_ID_CHARS]) or Cursor.parse(self._asked("after")[:MAX_ID_CHARS])

    def _asked(self, name: str) -> str:
        query: str = self.scope["query_string"].decode("latin-1")
        return parse_qs(query).get(name, [""])[-1]


class ListEvents(EventStream):
    """GET /chat/live/: `row` with a conversation and what changed of it; `stale` when hints may have been missed."""

    async def _frames(self, user: User) -> AsyncGenerator[Frame, None]:
        with hub().hints(user.pk) as mailbox:
            mailbox.go_stale()  # the page was made before this; it asks once whether it still holds
            while True:
                if mailbox.is_stale:
                    mailbox.begin_anew()
                    yield Frame("stale", {})
                for hint in dict.fromkeys(mailbox.take()):  # the same twice says no more
                    if (told := notify.change_of(hint)) is not None:
                        change, conversation = told
                        yield Frame("row", {"conversation": conversation, "change": change})
                await mailbox.wait(PING_SECONDS)


async def is_still_signed_in(scope: dict[str, Any], user: User) -> bool:
    """Whether the session that opened the stream still stands. Raises DatabaseError."""
    key = getattr(scope.get("session"), "session_key", None)
    return key is None or await in_thread(access.is_signed_in, key, user.pk)  # by no session: a test's own scope
