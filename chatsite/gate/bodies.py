"""The ASGI layer before everything else: a body is counted and timed, and who sends a large one is known.

What a request says of its length is judged before anything of it is read. One that says nothing is counted: at the byte
too many it is answered, and the application behind is told that the client has gone, so that it drops what it has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import structlog
from django.conf import settings
from django.db import DatabaseError

from chatsite.gate import refusals
from chatsite.gate.limits import STRANGER_BYTES, limits_of, most_of_all
from chatsite.gate.pace import Pace
from chatsite.gate.refusals import Refusal
from chatsite.gate.room import Place, Room, RoomFull, TooManyBodies
from chatsite.gate.visitor import Scope, Visitor

log = structlog.get_logger(__name__)

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

GONE: Message = {"type": "http.disconnect"}
MAX_LENGTH_DIGITS = 15


class BodyGate:
    def __init__(self, application: Application) -> None:
        self._application = application
        site = settings.SMOLFLEET
        self.room = Room(
            max_bytes=max(site.max_body_bytes_at_once, most_of_all()), max_per_address=site.max_bodies_per_address
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        passing = _Passing(self.room, scope, receive, send)
        try:
            if await passing.may_begin():
                await self._application(scope, passing.receive, passing.send)
        finally:
            passing.free()


class _Passing:
    """One request on its way through."""

    def __init__(self, room: Room, scope: Scope, receive: Receive, send: Send) -> None:
        self._room = room
        self._path: str = scope["path"]
        self._method: str = scope["method"]
        self._receive = receive
        self._send = send
        self._visitor = Visitor(scope)
        self._limits = limits_of(self._method, self._path)
        self._most = self._limits.stranger
        self._scope = scope
        self._num_bytes = 0
        self._place: Place | None = None
        self._is_complete = False  # nothing more of the body comes
        self._has_begun = False  # the answer
        self._is_refused = False
        site = settings.SMOLFLEET
        self._pace = Pace(seconds=site.slow_client_seconds, bytes_per_second=site.min_body_rate)

    async def may_begin(self) -> bool:
        """Judge what the head says of the body. Where it may not come this has been said."""
        try:
            declared = self._declared_length()
            if declared:
                await self._allow(declared)
                self._room.check(max(0, declared - STRANGER_BYTES))
                self._sit_down()
        except Refusal as refusal:
            await self._refuse(refusal)
        except RoomFull:
            await self._refuse(refusals.no_room())
        return not self._is_refused

    async def receive(self) -> Message:
        if self._is_refused:
            return GONE
        if self._is_complete:
            return await self._receive()  # only that the client has gone
        try:
            message = await self._next()
            if message["type"] == "http.request":
                await self._take(len(message.get("body", b"")), has_more=bool(message.get("more_body")))
            return message
        except Refusal as refusal:
            await self._refuse(refusal)
        except RoomFull:
            await self._refuse(refusals.no_room())
        return GONE

    async def send(self, message: Message) -> None:
        if self._is_refused:
            return
        if message["type"] == "http.response.start":
            self._has_begun = True
            if self._is_complete:
                self.free()  # an answer begins when the body has been used
        await self._send(message)

    def free(self) -> None:
        if self._place is not None:
            self._place.free()

    async def _next(self) -> Message:
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            async with asyncio.timeout(self._pace.seconds_left()):
                message = await self._receive()
        except TimeoutError:
            raise refusals.too_slow() from None
        self._pace.note(waited=clock() - began, num_bytes=len(message.get("body", b"")))
        return message

    async def _take(self, num_bytes: int, *, has_more: bool) -> None:
        self._num_bytes += num_bytes
        if has_more:
            self._sit_down()
        await self._allow(self._num_bytes)
        if self._place is not None:
            self._place.grow_to(max(0, self._num_bytes - STRANGER_BYTES))
        if not has_more:
            self._is_complete = True
            if self._place is not None:
                self._place.has_come()

    def _sit_down(self) -> None:
        if self._place is None:
            try:
                self._place = self._room.seat(self._visitor.address)
            except TooManyBodies:
                raise refusals.too_many() from None

    async def _allow(self, num_bytes: int) -> None:
        """Raises `Refusal` where a body of so many bytes may not come from this visitor."""
        if num_bytes <= self._most:
            return
        if num_bytes > self._limits.person:
            raise refusals.too_large(self._limits.person)
        try:
            is_known = await self._visitor.is_known()
        except DatabaseError:
            raise refusals.cannot_tell() from None
        if not is_known:
            raise refusals.too_large(self._limits.stranger, for_stranger=True)
        self._most = self._limits.person

    def _declared_length(self) -> int | None:
        """None where the head does not say it."""
        lengths = [value for name, value in self._scope["headers"] if name.lower() == b"content-length"]
        if not lengths:
            return None
        is_in_pieces = any(name.lower() == b"transfer-encoding" for name, _ in self._scope["headers"])
        if is_in_pieces or len(lengths) > 1 or not lengths[0].isdigit():
            raise refusals.no_length()
        if len(lengths[0].lstrip(b"0")) > MAX_LENGTH_DIGITS:
            raise refusals.too_large(self._limits.person)
        return int(lengths[0].lstrip(b"0") or b"0")

    async def _refuse(self, refusal: Refusal) -> None:
        """Say so, where nothing else has been said yet; the application behind hears that the client has gone."""
        self._is_refused = True
        self.free()
        log.info("request refused", status=refusal.status, code=refusal.code, num_bytes=self._num_bytes)
        if self._has_begun:
            return
        for message in refusals.messages(refusal, self._path, self._method, self._visitor):
            await self._send(message)
