"""A client without manners: it says what it likes over a plain socket, as slowly or as long as it likes."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterable, Iterator
from types import TracebackType
from urllib.parse import urlsplit

SECONDS = 30.0
PIECE = b"x" * 16_384


class Answer:
    """The first answer of what came back."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        head, _, self.body = raw.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        words = first.split(" ")
        self.status = int(words[1]) if len(words) > 1 else 0  # 0: the connection ended without a word
        self.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}

    @property
    def num_answers(self) -> int:
        return self.raw.count(b"HTTP/1.1 ")


class RawClient:
    def __init__(self, base_url: str) -> None:
        parts = urlsplit(base_url)
        self.host = parts.netloc
        self._came_behind = b""
        self.socket = socket.create_connection((parts.hostname, parts.port), timeout=SECONDS)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)  # what it holds was sent, but not received

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.socket.close()

    def head(self, method: str, path: str, *headers: str) -> bytes:
        return "\r\n".join([f"{method} {path} HTTP/1.1", f"Host: {self.host}", *headers, "", ""]).encode()

    def say(self, data: bytes) -> None:
        self.socket.sendall(data)

    def hears_something(self, seconds: float = 0.0) -> bool:
        return bool(select.select([self.socket], [], [], seconds)[0])

    def pour(self, pieces: Iterable[bytes]) -> int:
        """Send until there is an answer or the connection breaks. How many bytes went out."""
        num_bytes = 0
        self.socket.setblocking(False)
        try:
            for piece in pieces:
                rest = memoryview(piece)
                while rest:
                    readable, writable, _ = select.select([self.socket], [self.socket], [], SECONDS)
                    if readable:
                        return num_bytes
                    assert writable, "neither read nor answered"
                    sent = self.socket.send(rest)
                    num_bytes += sent
                    rest = rest[sent:]
        except (ConnectionResetError, BrokenPipeError):
            pass
        finally:
            self.socket.settimeout(SECONDS)
        return num_bytes

    def answer(self) -> Answer:
        return Answer(self.rest())

    def rest(self) -> bytes:
        """What comes until the other side ends the connection."""
        got = b""
        try:
            while piece := self.socket.recv(65_536):
                got += piece
        except ConnectionResetError:
            pass
        return got

    def next_answer(self) -> Answer:
        """One answer with a length, on a connection that goes on. What came behind it is kept for the next."""
        got, self._came_behind = self._came_behind, b""
        while b"\r\n\r\n" not in got:
            got += self._some()
        head = got.index(b"\r\n\r\n") + 4
        size = head + int(Answer(got).headers.get("content-length", 0))
        while len(got) < size:
            got += self._some()
        self._came_behind = got[size:]
        return Answer(got[:size])

    def _some(self) -> bytes:
        piece = self.socket.recv(65_536)
        assert piece, "the connection ended"
        return piece


def same_for_ever(num_bytes: int) -> Iterator[bytes]:
    for _ in range(num_bytes // len(PIECE)):
        yield PIECE


def in_chunks(num_bytes: int, piece: bytes = PIECE) -> Iterator[bytes]:
    """A chunked body that never comes to its end."""
    for _ in range(num_bytes // len(piece)):
        yield b"%x\r\n%s\r\n" % (len(piece), piece)
