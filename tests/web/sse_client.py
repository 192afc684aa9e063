"""Readers of event streams: over ASGI, with every message in the test's hands, and over real HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Self

from asgiref.testing import ApplicationCommunicator
from channels.routing import URLRouter
from django.contrib.auth.models import AnonymousUser

from chatsite.chat.routing import http_urlpatterns

SECONDS = 10.0
application = URLRouter(http_urlpatterns)


@dataclass(frozen=True)
class SseEvent:
    event: str
    data: dict[str, Any]
    id: str = ""


def parse(body: str) -> list[SseEvent]:
    """The complete events of a stream's text; comments and `retry` left out."""
    events = []
    for block in body.split("\n\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in block.split("\n") if not line.startswith(":"))
        if "data" in fields:
            events.append(SseEvent(fields["event"], json.loads(fields["data"]), fields.get("id", "")))
    return events


@dataclass
class Shown:
    """What a page makes of frames: text by its deltas, HTML by its blocks and tail."""

    content: str = ""
    reasoning: str = ""
    blocks: list[str] = field(default_factory=list)
    tail: str = ""
    done: dict[str, Any] | None = None

    def take(self, events: Iterable[SseEvent]) -> Shown:
        for event in events:
            data = event.data
            if event.event == "reset":
                self.content, self.reasoning, self.blocks, self.tail = "", "", [], ""
            elif event.event == "delta":
                self.content += data.get("content", "")
                self.reasoning += data.get("reasoning", "")
                self.blocks += data.get("blocks", [])
                self.tail = data["tail"] if "blocks" in data else self.tail + data.get("content", "")
            elif event.event == "done":
                self.done = data
                self.blocks += data["blocks"]
                self.tail = data["tail"]
                if data.get("snapshot"):
                    self.content, self.reasoning = data["content"], data["reasoning"]
        return self


class Stream:
    """One request for a generation's events, as ASGI messages."""

    def __init__(
        self,
        user: Any,
        generation_id: object,
        *,
        after: str = "",
        header: str = "",
        method: str = "GET",
        app: Any = None,
    ) -> None:
        headers = [(b"last-event-id", header.encode())] if header else []
        self.communicator = ApplicationCommunicator(
            app or application,
            {
                "type": "http",
                "method": method,
                "path": f"/chat/generations/{generation_id}/events",
                "query_string": f"after={after}".encode() if after else b"",
                "headers": headers,
                "user": user or AnonymousUser(),
            },
        )
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.body = ""
        self.has_ended = False

    async def __aenter__(self) -> Self:
        await self.communicator.send_input({"type": "http.request", "body": b"", "more_body": False})
        start = await self.communicator.receive_output(SECONDS)
        self.status, self.headers = start["status"], dict(start["headers"])
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.leave()

    async def leave(self) -> None:
        """The client goes; the application must end by itself at once."""
        await self.communicator.send_input({"type": "http.disconnect"})
        await self.communicator.wait(2.0)

    async def next_part(self) -> None:
        message = await self.communicator.receive_output(SECONDS)
        self.body += message["body"].decode()
        self.has_ended = not message.get("more_body")

    @property
    def events(self) -> list[SseEvent]:
        return parse(self.body)

    async def until(self, name: str, count: int = 1) -> SseEvent:
        """Read until so many events of that name came; the last of them."""
        async with asyncio.timeout(SECONDS):
            while True:
                found = [event for event in self.events if event.event == name]
                if len(found) >= count:
                    return found[-1]
                assert not self.has_ended, f"ended before {name}: {self.body}"
                await self.next_part()

    async def until_text(self, text: str) -> None:
        async with asyncio.timeout(SECONDS):
            while Shown().take(self.events).content != text:
                assert not self.has_ended, self.body
                await self.next_part()

    async def to_end(self) -> list[SseEvent]:
        async with asyncio.timeout(SECONDS):
            while not self.has_ended:
                await self.next_part()
        return self.events
