"""A conversation over WebSocket: every answer being written in it, also those that begin later; and Stop.

One task per followed generation, one that finds those that begin. The same frames as over HTTP, each with its
generation's id. The origin was checked on the way here (`asgi`); ids give no access. What a client sends is small,
typed and never trusted: a bad frame is answered, not fatal.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from typing import Any, Literal
from uuid import UUID

import msgspec
import structlog
from channels.generic.websocket import AsyncWebsocketConsumer
from django.db import DatabaseError
from django.http import Http404

from chatsite.accounts.models import User
from chatsite.chat.actions import send
from chatsite.chat.models import Conversation
from chatsite.chat.queries import access
from chatsite.chat.streams.cancel import end_tasks
from chatsite.chat.streams.follow import frames_of, in_thread
from chatsite.chat.streams.hub import hub
from chatsite.chat.streams.language import language_of
from chatsite.chat.streams.limits import RECHECK_SECONDS, Budget, TooManyStreams, seat
from chatsite.chat.streams.mailbox import Mailbox
from chatsite.chat.streams.revocation import until_revoked
from chatsite.chat.streams.sse import NO_CHANNEL_LAYER, is_still_signed_in
from inference.coordination.log_view import Cursor

log = structlog.get_logger(__name__)

MAX_FRAME_BYTES = 4_096  # of what a client sends
MAX_FRAMES_PER_MINUTE = 120
MAX_FOLLOWED = 8  # generations of one socket at a time
LOOK_SECONDS = 10.0  # how often a socket looks for new answers by itself; usually it is told
MAX_SOCKET_SECONDS = 3_600.0

UNAUTHENTICATED, NOT_FOUND, TOO_MANY, COME_AGAIN, FAILED = 4401, 4404, 4429, 4000, 1011


class ClientFrame(msgspec.Struct, frozen=True):
    type: Literal["follow", "stop"]
    generation: UUID
    after: str = ""


_decoder = msgspec.json.Decoder(ClientFrame)


class ConversationSocket(AsyncWebsocketConsumer):  # type: ignore[misc]  # channels has no types
    """/ws/chat/<conversation>"""

    channel_layer_alias = NO_CHANNEL_LAYER

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._held = contextlib.ExitStack()
        self._watcher: asyncio.Task[None] | None = None
        self._guard: asyncio.Task[None] | None = None
        self._followed: dict[UUID, asyncio.Task[None]] = {}
        self._told: set[UUID] = set()  # generations whose end this socket has told
        self._is_closing = False
        self._minute = self._num_frames = 0

    async def connect(self) -> None:
        await self.accept()  # only an accepted socket can be closed with a code that the page sees
        user: User = self.scope["user"]
        if not user.is_authenticated:
            await self._close(UNAUTHENTICATED)
            return
        try:
            if not await in_thread(access.may_enter, user):
                await self._close(UNAUTHENTICATED)
                return
            conversation = await in_thread(
                access.conversation_of, user, self.scope["url_route"]["kwargs"]["conversation_id"]
            )
            self._held.enter_context(seat(user.pk))
        except Http404:
            await self._close(NOT_FOUND)
        except TooManyStreams:
            await self._close(TOO_MANY)
        except DatabaseError:
            await self._close(COME_AGAIN)
        else:
            self._user, self._conversation = user, conversation
            self._budget = Budget(max_seconds=MAX_SOCKET_SECONDS)
            self._guard = asyncio.create_task(self._close_when_revoked(), name="ws guard")
            self._watcher = asyncio.create_task(self._watch(), name="ws watch")

    async def disconnect(self, code: int) -> None:
        try:
            await end_tasks(self._guard, self._watcher, *self._followed.values())
        finally:
            self._held.close()

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        if self._watcher is None or self._is_closing:
            return
        raw = text_data.encode(errors="surrogatepass") if text_data is not None else bytes_data or b""
        if self._talks_too_much():
            await self._complain("too_many", f"At most {MAX_FRAMES_PER_MINUTE} frames a minute.")
            await self._close(TOO_MANY)  # an answer to each would fill memory where nobody reads them
            return
        if len(raw) > MAX_FRAME_BYTES:
            await self._complain("too_long", f"A frame has at most {MAX_FRAME_BYTES} bytes.")
            return
        try:
            frame = _decoder.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError):
            await self._complain("bad_frame", "That is no frame this socket knows.")
            return
        try:
            await self._obey(frame)
        except Http404:
            await self._complain("not_found", "There is nothing here.", frame.generation)
        except DatabaseError:
            await self._complain("try_again", "The database is away.", frame.generation)

    async def _obey(self, frame: ClientFrame) -> None:
        generation = await in_thread(access.generation_of, self._user, frame.generation)
        if generation.message is None or generation.message.conversation_id != self._conversation.pk:
            raise Http404
        if frame.type == "stop":
            await in_thread(send.stop, self._user, generation)
        else:
            await self._unfollow(generation.pk)
            self._follow(generation.pk, Cursor.parse(frame.after))

    def _talks_too_much(self) -> bool:
        minute = int(asyncio.get_running_loop().time() // 60)
        self._num_frames = self._num_frames + 1 if minute == self._minute else 1
        self._minute = minute
        return self._num_frames > MAX_FRAMES_PER_MINUTE

    async def _watch(self) -> None:
        """Follow what is being written, and whatever begins, until the budget ends."""
        try:
            with hub().notices(self._conversation.pk) as mailbox:
                while not self._budget.is_spent:
                    for generation_id in await self._active():
                        if generation_id not in self._followed and generation_id not in self._told:
                            self._follow(generation_id, None)
                    await self._wait_for_news(mailbox)
            await self._close(COME_AGAIN)
        except Exception:
            log.exception("socket failed")
            await self._close(FAILED)

    async def _close_when_revoked(self) -> None:
        may_go_on = functools.partial(is_still_signed_in, self.scope, self._user)
        try:
            await until_revoked(self._user.pk, may_go_on, every=RECHECK_SECONDS)
            await self._close(UNAUTHENTICATED)
        except Exception:
            log.exception("socket failed")
            await self._close(FAILED)

    async def _wait_for_news(self, mailbox: Mailbox) -> None:
        mailbox.begin_anew()
        await mailbox.wait(LOOK_SECONDS)

    async def _active(self) -> list[UUID]:
        try:
            return await in_thread(_active_ids, self._conversation)
        except DatabaseError:
            return []  # looked for again in a few seconds

    def _follow(self, generation_id: UUID, after: Cursor | None) -> None:
        if len(self._followed) < MAX_FOLLOWED:
            task = asyncio.create_task(self._tell(generation_id, after), name="ws follow")
            self._followed[generation_id] = task

    async def _unfollow(self, generation_id: UUID) -> None:
        await end_tasks(self._followed.pop(generation_id, None))

    async def _tell(self, generation_id: UUID, after: Cursor | None) -> None:
        try:
            language = language_of(self.scope)
            told_to = frames_of(hub(), self._user, generation_id, after, language=language)
            async with contextlib.aclosing(told_to) as frames:
                async for frame in frames:
                    told: dict[str, Any] = {"generation": str(generation_id), "event": frame.event, "data": frame.data}
                    if frame.id:
                        told["id"] = frame.id
                    await self._send(told)
                    if frame.is_last:
                        self._told.add(generation_id)
                    if self._budget.is_spent:
                        await self._close(COME_AGAIN)
                        return
        except Http404:
            await self._complain("not_found", "There is nothing here.", generation_id)
        except DatabaseError:
            await self._close(COME_AGAIN)
        except Exception:
            log.exception("socket failed", generation_id=str(generation_id))
            await self._close(FAILED)
        finally:
            if self._followed.get(generation_id) is asyncio.current_task():
                del self._followed[generation_id]

    async def _complain(self, code: str, message: str, generation_id: UUID | None = None) -> None:
        told: dict[str, Any] = {"event": "error", "data": {"code": code, "message": message}}
        if generation_id is not None:
            told["generation"] = str(generation_id)
        await self._send(told)

    async def _send(self, told: dict[str, Any]) -> None:
        if self._is_closing:
            return
        text = msgspec.json.encode(told).decode()
        self._budget.spend(len(text))
        await self.send(text_data=text)

    async def _close(self, code: int) -> None:
        if not self._is_closing:
            self._is_closing = True
            await self.close(code=code)


def _active_ids(conversation: Conversation) -> list[UUID]:
    return list(access.active_generations_of(conversation).order_by("pk").values_list("pk", flat=True))
