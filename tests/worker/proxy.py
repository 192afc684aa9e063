"""A TCP proxy on loopback that can lose replies: what was sent arrives, what comes back does not."""

from __future__ import annotations

import contextlib
import socket
import threading


class LossyProxy:
    """Forwards to `target`. `lose_next_reply` passes the next request on and then cuts; `is_cut` refuses everyone."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.num_lost = 0
        self._lose = threading.Event()
        self._cut = threading.Event()
        self._closed = False
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._half_done: set[tuple[socket.socket, socket.socket]] = set()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._spawn(self._accept)

    def lose_next_reply(self) -> None:
        self._lose.set()

    def cut(self) -> None:
        """Drop all connections and take no new ones."""
        self._cut.set()
        for pair in list(self._pairs):
            _shut(*pair)

    def mend(self) -> None:
        self._cut.clear()

    def close(self) -> None:
        self._closed = True
        self.cut()
        socket.create_connection(("127.0.0.1", self.port)).close()  # wakes the listener
        for thread in self._threads:
            thread.join(10)
        self._listener.close()

    def _spawn(self, target: object, *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)  # type: ignore[arg-type]
        thread.start()
        self._threads.append(thread)

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            if self._closed or self._cut.is_set():
                client.close()
                if self._closed:
                    return
                continue
            pair = (client, socket.create_connection(self._target))
            self._pairs.add(pair)
            self._spawn(self._pump, pair, False)
            self._spawn(self._pump, pair, True)

    def _pump(self, pair: tuple[socket.socket, socket.socket], is_reply: bool) -> None:
        source, sink = (pair[1], pair[0]) if is_reply else pair
        try:
            while data := source.recv(65536):
                if is_reply and self._lose.is_set():
                    self._lose.clear()
                    self.num_lost += 1
                    break
                sink.sendall(data)
        except OSError:
            pass
        _shut(*pair)
        with self._lock:  # closed by the second pump: a number that is free again may be another connection's
            is_second = pair in self._half_done
            self._half_done.add(pair)
        if is_second:
            self._pairs.discard(pair)
            self._half_done.discard(pair)
            for one in pair:
                one.close()


def _shut(*sockets: socket.socket) -> None:
    for one in sockets:
        with contextlib.suppress(OSError):  # the other end was first
            one.shutdown(socket.SHUT_RDWR)
