"""One connection: the head of a request has a size and a time; an answer to half a request ends the connection.

Such an end is a gentle one: the answer goes out, our side is closed, and what the client still sends is thrown away for
a moment, so that it reads the answer. A connection closed with unread bytes is reset, and the answer may be lost.
"""

from __future__ import annotations

from collections import Counter
from http import HTTPStatus
from typing import Any

from twisted.internet.interfaces import IHalfCloseableDescriptor
from twisted.python.failure import Failure
from twisted.web import http

ROOT_PATH = b"Daphne-Root-Path"  # Daphne would put what anybody writes there before every address on the page
MAX_HEADS_PER_ADDRESS = 256  # connections of one address that have not said yet what they want
LINGER_SECONDS = 2.0
LINGER_BYTES = 262_144  # thrown away at most; then the connection is not read, and the client's sending stands still


class Channel(http.HTTPChannel):  # type: ignore[misc]  # most of Twisted has no types
    maxHeaders = 100
    totalHeadersSize = 16_384  # request line and headers
    head_seconds = 30.0
    heads: Counter[str] | None = None  # by address; None behind a proxy, whose address is everybody's

    def __init__(self) -> None:
        super().__init__()
        self._is_in_head = True  # a request's head is waited for
        self._has_head_begun = False
        self._head_timer: Any = None
        self._is_cut = False  # answered before the body was complete
        self._linger_timer: Any = None
        self._linger_bytes = LINGER_BYTES

    def connectionMade(self) -> None:
        super().connectionMade()
        self._start_head_timer()  # who connects says something; between two requests a connection may rest longer

    def connectionLost(self, reason: Failure) -> None:
        self._stop_head_timer()
        if self._linger_timer is not None and self._linger_timer.active():
            self._linger_timer.cancel()
        super().connectionLost(reason)

    # -- heads

    def dataReceived(self, data: bytes) -> None:
        if self._is_in_head:
            self._has_head_begun = True
            self._start_head_timer()
        super().dataReceived(data)

    def headerReceived(self, line: bytes) -> bool:
        try:
            return bool(super().headerReceived(line))
        except ValueError:  # a length of thousands of digits
            self._respondToBadRequestAndDisconnect()
            return False

    def allHeadersReceived(self) -> None:
        self._is_in_head = False
        self._stop_head_timer()
        request = self.requests[-1]
        request.requestHeaders.removeHeader(ROOT_PATH)
        super().allHeadersReceived()
        if self.length == 0:
            return
        if request.requestHeaders.hasHeader(b"Upgrade"):  # a socket's handshake has no body
            self._respondToBadRequestAndDisconnect()
            return
        request.begin(self._command, self._path, self._version)

    def lineLengthExceeded(self, line: bytes) -> None:
        self._refuse(self._too_long())

    def _respondToBadRequestAndDisconnect(self) -> None:
        """Twisted found a fault in a head, or in the pieces of a body."""
        is_long = self._receivedHeaderSize > self.totalHeadersSize or self._receivedHeaderCount > self.maxHeaders
        self._refuse(self._too_long() if is_long else HTTPStatus.BAD_REQUEST)

    def _too_long(self) -> HTTPStatus:
        is_first_line = not hasattr(self, "_command")
        return HTTPStatus.REQUEST_URI_TOO_LONG if is_first_line else HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE

    def _refuse(self, status: HTTPStatus) -> None:
        if self.transport.disconnecting:
            return
        self._stop_head_timer()
        if not (self.requests and self.requests[-1].startedWriting):
            text = f"{status.value} {status.phrase}\n"
            head = (
                f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: text/plain; charset=utf-8\r\n"
                f"Content-Length: {len(text)}\r\nConnection: close\r\n\r\n"
            )
            self.transport.write((head + text).encode())
        self.loseConnection()

    def _start_head_timer(self) -> None:
        if self._head_timer is not None:
            return
        self._head_timer = self.callLater(self.head_seconds, self._head_is_late)
        if self.heads is not None:
            self._address = str(getattr(self.transport.getPeer(), "host", ""))
            self.heads[self._address] += 1
            if self.heads[self._address] > MAX_HEADS_PER_ADDRESS:
                self.transport.abortConnection()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            if self._head_timer.active():
                self._head_timer.cancel()
            self._head_timer = None
            if self.heads is not None:
                self.heads[self._address] -= 1
                if not self.heads[self._address]:
                    del self.heads[self._address]

    def _head_is_late(self) -> None:
        if self._has_head_begun:
            self._refuse(HTTPStatus.REQUEST_TIMEOUT)
        else:
            self.timeoutConnection()

    # -- bodies

    def hold(self) -> None:
        """Read no more for now."""
        self.transport.pauseProducing()

    def release(self) -> None:
        if not self._waitingForTransport:
            self.transport.resumeProducing()

    def rawDataReceived(self, data: bytes) -> None:
        if self._is_cut:
            self._throw_away(len(data))
        else:
            super().rawDataReceived(data)

    def _send100Continue(self) -> None:
        self.requests[-1].wants_continue = True  # until the application asks for the body

    def requestDone(self, request: Any) -> None:
        self._is_cut = request.is_coming
        if self._is_cut or b"close" in request.responseHeaders.getRawHeaders(b"Connection", []):
            self.persistent = False
        self._is_in_head, self._has_head_begun = not self._is_cut, False
        super().requestDone(request)

    # -- the end

    def loseConnection(self) -> None:
        if self._is_cut and self._linger_timer is None and IHalfCloseableDescriptor.providedBy(self.transport):
            self._linger()
        else:
            super().loseConnection()

    def _linger(self) -> None:
        self.setTimeout(None)
        self._linger_timer = self.callLater(LINGER_SECONDS, self.timeoutConnection)
        self._networkProducer.unregisterProducer()
        self.transport.loseWriteConnection()
        self.setRawMode()
        self.transport.resumeProducing()

    def _throw_away(self, num_bytes: int) -> None:
        self._linger_bytes -= num_bytes
        if self._linger_bytes <= 0:
            self.transport.pauseProducing()
