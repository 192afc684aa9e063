"""One request. The application begins at the end of its head, and the body comes as it is asked for.

What has come and was not asked for yet is held here, `MAX_HELD_BYTES` and one read more at most: then the connection is
not read. `100 Continue` goes out when the application asks for the body, so that a refusal comes before it.
"""

from __future__ import annotations

import io
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from daphne.http_protocol import WebRequest
from twisted.python.failure import Failure

if TYPE_CHECKING:
    from chatsite.server.channel import Channel

MAX_HELD_BYTES = 131_072
KEY = "smolfleet.request"  # in a scope, on its way through the server alone

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]


class _Elsewhere(io.BytesIO):
    """Stands for a body that is not stored. Daphne hands nothing on of a closed one: we do."""

    closed = True


class StreamedRequest(WebRequest):  # type: ignore[misc]  # daphne has no types
    channel: Channel

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._parsePOSTFormSubmission = False  # Twisted would read every form into memory, for itself
        self._held = bytearray()
        self._is_told = False  # a message that stands for what is held waits in the application's queue
        self._is_paused = False
        self._has_begun = False
        self.is_coming = False  # the body is not complete
        self.wants_continue = False

    # -- from the connection

    def gotLength(self, length: int | None) -> None:
        if length == 0:
            super().gotLength(length)
        else:
            self.content = _Elsewhere()

    def begin(self, command: bytes, path: bytes, version: bytes) -> None:
        """The head is complete, and a body follows."""
        self._has_begun = self.is_coming = True
        super().requestReceived(command, path, version)

    def handleContentChunk(self, data: bytes) -> None:
        if self.application_queue is None or not self._is_open:
            return
        self._held += data
        self._tell()
        if len(self._held) >= MAX_HELD_BYTES and not self._is_paused:
            self._is_paused = True
            self.channel.hold()

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:
        """All of the request is here."""
        if not self._has_begun:
            super().requestReceived(command, path, version)
            return
        self.is_coming = False
        if self.application_queue is not None and not self.finished:
            self._tell()

    def connectionLost(self, reason: Failure) -> None:
        self._is_paused = False
        super().connectionLost(reason)

    # -- from the application

    def enter(self, scope: Message) -> None:
        if self._has_begun:
            scope[KEY] = self

    async def next_message(self, receive: Receive) -> Message:
        """The next ASGI message: what is held of the body, or that the client has gone."""
        self._ask()
        message = await receive()
        if message["type"] != "http.request":
            return message
        self._is_told = False
        body = bytes(self._held)
        self._held.clear()
        self._go_on()
        return {"type": "http.request", "body": body, "more_body": self.is_coming}

    def handle_reply(self, message: Message) -> None:
        if message.get("type") == "http.response.start" and self.is_coming and self._is_open:
            # An answer to half a request: what is still to come of it cannot be told from another request.
            self.channel.persistent = False
            self._held.clear()
            headers = [(k, v) for k, v in message.get("headers", ()) if k.lower() != b"connection"]
            message = {**message, "headers": [*headers, (b"Connection", b"close")]}
        super().handle_reply(message)

    @property
    def _is_open(self) -> bool:
        """Whether the connection is still this request's; at its end Twisted takes `channel` away."""
        return not self.finished and not self._disconnected

    def _tell(self) -> None:
        if not self._is_told:
            self._is_told = True
            self.application_queue.put_nowait({"type": "http.request"})

    def _ask(self) -> None:
        if self.wants_continue and self.is_coming and self._is_open and not self._response_started:
            self.wants_continue = False
            self.channel.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _go_on(self) -> None:
        if self._is_paused and self._is_open:
            self._is_paused = False
            self.channel.release()


def as_it_comes(application: Any) -> Any:
    """`application`, receiving the bodies of streamed requests as they come."""

    async def started(scope: Message, receive: Receive, send: Any) -> None:
        request: StreamedRequest | None = scope.pop(KEY, None)
        if request is None:
            await application(scope, receive, send)
            return

        async def next_message() -> Message:
            return await request.next_message(receive)

        await application(scope, next_message, send)

    return started
