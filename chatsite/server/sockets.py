"""One WebSocket. What a page sends over it is small; a client that sends more is told so and cut."""

from __future__ import annotations

from daphne.ws_protocol import WebSocketProtocol

MAX_MESSAGE_BYTES = 16_384  # pages send a few hundred bytes; `websocket` answers what is only a little too long
MAX_HANDSHAKE_BYTES = 65_536  # head, and frames that come before they are asked for
MAX_WAITING = 64  # messages the application has not taken yet
TOO_MANY = 4429  # as the application says it


class Socket(WebSocketProtocol):  # type: ignore[misc]  # daphne has no types
    def dataReceived(self, data: bytes) -> None:
        """Until the application has accepted, nothing is taken out of what came."""
        if self.state == self.STATE_CONNECTING and len(self.data) + len(data) > MAX_HANDSHAKE_BYTES:
            self.transport.abortConnection()
            return
        super().dataReceived(data)

    def onMessage(self, payload: bytes, isBinary: bool) -> None:
        if self.application_queue.qsize() >= MAX_WAITING:
            self.sendClose(code=TOO_MANY, reason="Too many messages at once.")
            return
        super().onMessage(payload, isBinary)

    def serverSend(self, content: str | bytes, binary: bool = False) -> None:
        """What is told to a socket that is just being closed is dropped; the application hears of the end next."""
        if self.state not in (self.STATE_CLOSING, self.STATE_CLOSED):
            super().serverSend(content, binary)
