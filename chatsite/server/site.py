"""Daphne's server with connections, requests and sockets of our own; every other part of it stays as it is."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from daphne.server import Server  # before anything else of Twisted: it chooses the event loop

# isort: split
from daphne.cli import CommandLineInterface
from daphne.http_protocol import HTTPFactory
from django.conf import settings

from chatsite.server.channel import Channel
from chatsite.server.request import StreamedRequest, as_it_comes
from chatsite.server.sockets import MAX_MESSAGE_BYTES, Socket


class Connections(HTTPFactory):  # type: ignore[misc]  # daphne has no types
    """Makes a `Channel` of each connection."""

    protocol = Channel

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self._heads: Counter[str] = Counter()

    def buildProtocol(self, addr: Any) -> Channel:
        channel: Channel = super().buildProtocol(addr)
        channel.requestFactory = StreamedRequest
        channel.head_seconds = settings.SMOLFLEET.slow_client_seconds
        channel.heads = None if settings.PROXY_COUNT else self._heads
        return channel

    def acceptableProtocols(self) -> list[bytes]:
        return [b"http/1.1"]


class WebServer(Server):  # type: ignore[misc]
    def __init__(self, application: Any, **options: Any) -> None:
        super().__init__(as_it_comes(application), **options)

    # `run` makes both factories itself and keeps them under these names.

    @property
    def http_factory(self) -> Connections:
        return self._connections

    @http_factory.setter
    def http_factory(self, made: HTTPFactory) -> None:
        self._connections = Connections(self)

    @property
    def ws_factory(self) -> Any:
        return self._sockets

    @ws_factory.setter
    def ws_factory(self, made: Any) -> None:
        made.protocol = Socket
        made.setProtocolOptions(failByDrop=False)  # say why before the connection ends
        self._sockets = made

    def create_application(self, protocol: Any, scope: dict[str, Any]) -> asyncio.Queue[Any] | None:
        if isinstance(protocol, StreamedRequest):
            protocol.enter(scope)
        queue: asyncio.Queue[Any] | None = super().create_application(protocol, scope)
        return queue

    def kill_all_applications(self) -> Any:
        """Daphne takes for granted that each connection has an application. One still in its head has none."""
        nothing: asyncio.Future[None] = asyncio.get_event_loop().create_future()
        nothing.set_result(None)
        for details in self.connections.values():
            details.setdefault("application_instance", nothing)
        return super().kill_all_applications()


class CommandLine(CommandLineInterface):  # type: ignore[misc]
    server_class = WebServer

    def __init__(self) -> None:
        super().__init__()
        self.parser.set_defaults(
            websocket_max_message_size=MAX_MESSAGE_BYTES, websocket_max_frame_size=MAX_MESSAGE_BYTES
        )
