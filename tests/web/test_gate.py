"""The gate by itself: limits by route and sender, room, pace, and what is said to who does not pass."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from django.conf import settings
from django.db import DatabaseError
from django.urls import reverse

from chatsite.gate import visitor as visitor_module
from chatsite.gate.bodies import BodyGate
from chatsite.gate.limits import BARE_BYTES, STRANGER_BYTES, limits_of
from chatsite.gate.pace import Pace
from chatsite.gate.room import Room, RoomFull, TooManyBodies
from chatsite.gate.visitor import Visitor

Headers = dict[str, str]


class Exchange:
    """One request through the gate, behind which an application reads all and answers 200."""

    def __init__(self, gate: BodyGate, path: str = "/accounts/login/", method: str = "POST", **headers: str) -> None:
        self.coming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.sent: list[dict[str, Any]] = []
        named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        self.scope = {
            "type": "http",
            "path": path,
            "method": method,
            "headers": named,
            "client": ["10.0.0.9", 1],
            "gate": gate,
        }
        self.gate = gate

    def has_come(self, body: bytes, *, more: bool = False) -> None:
        self.coming.put_nowait({"type": "http.request", "body": body, "more_body": more})

    async def run(self) -> int:
        async def send(message: dict[str, Any]) -> None:
            self.sent.append(message)

        await self.gate(self.scope, self.coming.get, send)
        return self.status

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def headers(self) -> Headers:
        return {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}

    @property
    def body(self) -> str:
        return b"".join(message["body"] for message in self.sent[1:]).decode()


async def reading(scope: Any, receive: Any, send: Any) -> None:
    """Reads the whole body, as Django does, and says how much came."""
    num_bytes = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        num_bytes += len(message["body"])
        if not message["more_body"]:
            break
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(num_bytes).encode()})


@pytest.fixture
def gate(site: Callable[..., None], db: None) -> BodyGate:
    site(slow_client_seconds=0.2, max_bodies_per_address=2)
    return BodyGate(reading)


# -- limits


def test_only_what_takes_files_takes_much_and_only_from_people(site: Callable[..., None]) -> None:
    site(max_file_bytes=10_000_000, max_files_per_message=2, max_import_bytes=50_000_000)
    conversation = "01890000-0000-7000-8000-000000000000"
    upload, upload_there = reverse("chat:upload"), reverse("chat:upload", args=(conversation,))
    assert limits_of("POST", upload).person > 20_000_000
    assert limits_of("POST", upload_there) == limits_of("POST", upload)
    assert limits_of("POST", reverse("transfer:import")).person > 50_000_000
    for path in ("/", "/accounts/login/", "/chat/", f"/chat/{conversation}/send/", "/admin/accounts/user/"):
        assert limits_of("POST", path).person == settings.DATA_UPLOAD_MAX_MEMORY_SIZE, path
        assert limits_of("POST", path).stranger == STRANGER_BYTES
    for method, path in (("GET", upload), ("PUT", upload), ("HEAD", "/"), ("POST", "/nothing/"), ("POST", "//chat/")):
        assert limits_of(method, path).person == BARE_BYTES, (method, path)
    assert limits_of("POST", "/v1x").person == BARE_BYTES


async def test_a_body_at_the_limit_passes_and_one_byte_more_does_not(gate: BodyGate) -> None:
    for num_bytes, status in ((STRANGER_BYTES, 200), (STRANGER_BYTES + 1, 413)):
        told = Exchange(gate, content_length=str(num_bytes))
        told.has_come(b"x" * num_bytes)
        assert await told.run() == status
        counted = Exchange(gate)
        counted.has_come(b"x" * 30_000, more=True)
        counted.has_come(b"x" * (num_bytes - 30_000))
        assert await counted.run() == status
        if status == 200:
            assert counted.body == str(num_bytes)
    assert (gate.room.num_bytes, gate.room.num_coming) == (0, 0)


@pytest.mark.parametrize("length", ["", " ", "-1", "+1", "1e3", "0x10", "1,1", "1.0", "٣"])
async def test_a_length_that_is_no_number_is_a_400(gate: BodyGate, length: str) -> None:
    assert await Exchange(gate, content_length=length).run() == 400


async def test_lengths_that_disagree_or_stand_beside_pieces_are_a_400(gate: BodyGate) -> None:
    twice = Exchange(gate, content_length="3")
    twice.scope["headers"] = [(b"content-length", b"3"), (b"Content-Length", b"4")]
    assert await twice.run() == 400
    assert await Exchange(gate, content_length="3", transfer_encoding="chunked").run() == 400


async def test_a_length_of_thousands_of_digits_is_too_large(gate: BodyGate) -> None:
    assert await Exchange(gate, content_length="9" * 5_000).run() == 413


async def test_nobody_is_asked_who_a_small_body_is_from(gate: BodyGate, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(visitor_module, "_may_enter", lambda key: asked.append(key) or True)
    small = Exchange(gate, content_length="3", cookie="sessionid=abc")
    small.has_come(b"a=b")
    assert await small.run() == 200
    assert asked == []
    large = Exchange(gate, cookie="sessionid=abc")
    for _ in range(4):
        large.has_come(b"x" * STRANGER_BYTES, more=True)
    large.has_come(b"")
    assert await large.run() == 200
    assert asked == ["abc"]  # once, however many pieces


async def test_a_database_that_is_away_is_a_503_and_not_a_stranger(
    gate: BodyGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(key: str) -> bool:
        raise DatabaseError

    monkeypatch.setattr(visitor_module, "_may_enter", away)
    asked = Exchange(gate, content_length="100000", cookie="sessionid=abc")
    assert await asked.run() == 503
    assert asked.headers["retry-after"]


# -- room and pace


async def test_so_many_bodies_of_one_address_and_no_more(gate: BodyGate) -> None:
    waiting = [Exchange(gate, content_length="3") for _ in range(2)]
    tasks = [asyncio.create_task(one.run()) for one in waiting]
    await asyncio.sleep(0)
    third = Exchange(gate, content_length="3")
    assert await third.run() == 429
    assert third.headers["retry-after"]
    other = Exchange(gate, content_length="3")
    other.scope["client"] = ["10.0.0.10", 1]
    other.has_come(b"a=b")
    assert await other.run() == 200
    for one in waiting:
        one.has_come(b"a=b")
    assert await asyncio.gather(*tasks) == [200, 200]
    assert gate.room.num_coming == 0


async def test_a_full_room_refuses_large_bodies_and_lets_small_ones_in(
    gate: BodyGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visitor_module, "_may_enter", lambda key: True)
    gate.room = Room(max_bytes=100_000, max_per_address=10)
    gate.room.take(90_000)
    for headers in ({"content_length": str(STRANGER_BYTES + 20_000)}, {}):
        large = Exchange(gate, cookie="sessionid=abc", **headers)
        large.has_come(b"x" * STRANGER_BYTES, more=True)
        large.has_come(b"x" * 20_000)
        assert await large.run() == 503
    small = Exchange(gate, content_length=str(STRANGER_BYTES))
    small.has_come(b"x" * STRANGER_BYTES)
    assert await small.run() == 200
    assert (gate.room.num_bytes, gate.room.num_coming) == (90_000, 0)


async def test_a_client_that_leaves_gives_its_place_back(gate: BodyGate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visitor_module, "_may_enter", lambda key: True)
    leaving = Exchange(gate, content_length="200000", cookie="sessionid=abc")
    leaving.has_come(b"x" * 100_000, more=True)
    leaving.coming.put_nowait({"type": "http.disconnect"})
    await gate(leaving.scope, leaving.coming.get, None)  # type: ignore[arg-type]  # nothing is said to who has gone
    assert (gate.room.num_bytes, gate.room.num_coming) == (0, 0)


async def test_a_body_that_stands_still_is_a_408(gate: BodyGate) -> None:
    still = Exchange(gate, content_length="3")
    still.has_come(b"a", more=True)
    assert await still.run() == 408
    assert gate.room.num_coming == 0


def test_pace_allows_what_its_rate_takes_and_counts_the_clients_time_alone() -> None:
    pace = Pace(seconds=10.0, bytes_per_second=100)
    assert pace.seconds_left() == 10.0
    pace.note(waited=9.0, num_bytes=1)
    assert 1.0 <= pace.seconds_left() < 1.1  # a byte now and then is not enough
    pace.note(waited=0.0, num_bytes=10_000)
    assert pace.seconds_left() == 10.0  # never still for longer, whatever came before
    pace.note(waited=200.0, num_bytes=0)
    assert pace.seconds_left() == 0.0


def test_room_counts_what_is_in_it() -> None:
    room = Room(max_bytes=10, max_per_address=1)
    place = room.seat("a")
    place.grow_to(6)
    with pytest.raises(TooManyBodies):
        room.seat("a")
    with pytest.raises(RoomFull):
        room.seat("b").grow_to(5)
    place.free()
    place.free()
    assert room.num_bytes == 0
    room.seat("a").grow_to(10)


# -- what is said


async def test_a_refusal_speaks_the_form_and_the_language_of_who_asks(gate: BodyGate) -> None:
    large = {"content_length": "300000000"}
    page = Exchange(gate, accept="text/html,*/*", **large)
    await page.run()
    assert page.headers["content-type"].startswith("text/html")
    assert "<h1>Too large</h1>" in page.body
    assert "script" not in page.headers["content-security-policy"]
    fragment = Exchange(gate, accept="text/html", hx_request="true", **large)
    await fragment.run()
    assert fragment.headers["hx-retarget"] == "#refusal"
    assert fragment.body.startswith('<p class="err" role="alert" data-code="request_too_large">')
    plain = Exchange(gate, **large)
    await plain.run()
    assert plain.headers["content-type"].startswith("text/plain")
    assert "4.0\xa0MB" in plain.body
    api = Exchange(gate, "/v1/chat/completions", accept="text/html", accept_language="de", **large)
    await api.run()
    error = json.loads(api.body)["error"]
    assert (error["code"], error["type"]) == ("request_too_large", "invalid_request_error")
    german = Exchange(gate, accept="text/html", accept_language="de", **large)
    await german.run()
    assert 'lang="de"' in german.body
    for exchange in (page, fragment, plain, api, german):
        assert exchange.status == 413
        assert exchange.headers["connection"] == "close"
        assert exchange.headers["cache-control"] == "no-store"
        assert exchange.headers["content-length"] == str(len(exchange.body.encode()))


def test_the_address_is_the_one_that_sign_in_sees(settings: Any) -> None:
    def address(forwarded: str) -> str:
        headers = [(b"x-forwarded-for", part.encode()) for part in forwarded.split("|") if part]
        return Visitor({"headers": headers, "client": ["10.0.0.1", 5]}).address

    assert address("1.2.3.4") == "10.0.0.1"  # anybody may claim that
    settings.ALLAUTH_TRUSTED_PROXY_COUNT = 1
    assert address("6.6.6.6, 1.2.3.4") == "1.2.3.4"
    assert address("6.6.6.6|1.2.3.4") == "1.2.3.4"
    assert address("") == "10.0.0.1"
    settings.ALLAUTH_TRUSTED_PROXY_COUNT = 3
    assert address("1.2.3.4") == "10.0.0.1"
    assert Visitor({"headers": [], "client": None}).address == ""
