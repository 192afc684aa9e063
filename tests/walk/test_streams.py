"""What is no page of Django's: event streams, the WebSocket and `/v1`, asked for by every kind of visitor over ASGI.

Their routes stand in the table here as the pages' do in theirs: one without an entry fails.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import pytest
import pytest_asyncio
from asgiref.testing import ApplicationCommunicator
from channels.db import database_sync_to_async
from channels.routing import URLRouter

from chatsite.accounts.models import ApiKey
from chatsite.asgi import application
from chatsite.chat.streams import hub as hub_module
from chatsite.chat.streams.websocket import NOT_FOUND, UNAUTHENTICATED
from tests.walk.routes import of_site
from tests.walk.visiting import Site, compared, rows
from tests.walk.world import MARK, VISITORS, plant
from tests.web.chat_worker import MODEL

SECONDS = 30.0
HOST, ORIGIN = b"localhost", b"http://localhost"  # what the application was made with
SIGNED_IN = frozenset(VISITORS[1:])


@dataclass(frozen=True)
class Stream:
    """path: as the router has it. Those who may get `status`; others `refusal`, strangers `stranger`. A socket's
    statuses are the codes that it is closed with; 0: it stays open.
    """

    path: str
    may: frozenset[str]
    status: int = 200
    refusal: int = 404
    stranger: int = 401
    ids: dict[str, str] = field(default_factory=dict)
    method: str = "GET"
    body: dict[str, Any] | None = None
    by_key: bool = False  # a key says who it is, not a session

    def expected(self, visitor: str) -> int:
        return self.status if visitor in self.may else self.stranger if visitor == "stranger" else self.refusal


CHAT: dict[str, Any] = {"model": MODEL, "messages": []}  # who may ask is told what is wrong with it
CHAT_WITH_NO_MODEL = {"model": "\0x", "messages": [{"role": "user", "content": "\0x"}]}
OWNER = frozenset({"owner"})
STREAMS = (
    Stream("chat/generations/<generation_id>/events", OWNER),
    Stream("chat/generations/<generation_id>/events", OWNER, ids={"generation_id": "settled"}),
    Stream("chat/generations/<generation_id>/events", OWNER, ids={"generation_id": "temporary"}),
    Stream("chat/generations/<generation_id>/events", frozenset(), refusal=405, stranger=405, method="POST"),
    Stream("chat/live/", SIGNED_IN),
    Stream("chat/live/", frozenset(), refusal=405, stranger=405, method="POST"),
    Stream("v1/chat/completions", SIGNED_IN, 400, method="POST", body=CHAT, by_key=True),
    Stream("v1/chat/completions", SIGNED_IN, 404, method="POST", body=CHAT_WITH_NO_MODEL, by_key=True),
    Stream("v1/chat/completions", SIGNED_IN, 405, stranger=405, by_key=True),
    Stream("v1/models", SIGNED_IN, by_key=True),
    Stream("v1/models/<model>", SIGNED_IN, ids={"model": "model"}, by_key=True),
    Stream("v1/models/<model>", SIGNED_IN, 404, ids={"model": "conversation_id"}, by_key=True),
    *(
        Stream(f"v1{rest}", SIGNED_IN, 404, stranger=404, by_key=True)
        for rest in ("", "/conversations", "/feedback", "/files")
    ),
)
SOCKETS = (
    Stream("ws/chat/<conversation_id>", OWNER, 0, NOT_FOUND, UNAUTHENTICATED, ids={"conversation_id": "busy"}),
    Stream("ws/chat/<conversation_id>", OWNER, 0, NOT_FOUND, UNAUTHENTICATED),
)
IN_DJANGO = ""  # all that no route before it has taken; and any path below `v1` is one route
ANY_OF_V1 = "v1(?:/|)"


def _routers(thing: Any, seen: set[int]) -> Iterator[URLRouter]:
    """Every router in an application, however many wrappers lie around it."""
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, URLRouter):
        yield thing
        for route in thing.routes:
            yield from _routers(route.callback, seen)
    inside: list[Any] = list(vars(thing).values()) if hasattr(thing, "__dict__") else []
    if isinstance(thing, FunctionType):
        inside += [cell.cell_contents for cell in thing.__closure__ or ()]
    if isinstance(thing, dict):
        inside += thing.values()
    for part in inside:
        if isinstance(part, (dict, FunctionType)) or type(part).__module__.startswith(("channels", "chatsite")):
            yield from _routers(part, seen)


def test_every_stream_has_its_entry_and_every_entry_its_stream() -> None:
    patterns = [route.pattern for router in _routers(application, set()) for route in router.routes]
    there = {str(pattern).replace("^", "").replace("$", "") for pattern in patterns}
    there = {path.replace("<str:", "<").replace("<path:", "<") for path in there}
    assert IN_DJANGO in there and of_site(), "the pages are behind the streams"
    entered = {entry.path for entry in (*STREAMS, *SOCKETS) if entry.path != "v1" and not entry.path.startswith("v1/")}
    entered |= {entry.path for entry in STREAMS if entry.path in there}
    assert there - {IN_DJANGO, ANY_OF_V1} == entered, "a line for each in STREAMS or SOCKETS here"
    assert ANY_OF_V1 in there


@pytest_asyncio.fixture
async def hub(site: Site) -> AsyncIterator[None]:
    yield
    await hub_module.hub().close()


@pytest.fixture(scope="module")
def keys(built: Site) -> dict[str, str]:
    """A key of each visitor."""
    made = {visitor: ApiKey.create(user, "of the walk")[1] for visitor, user in built.world.people.items()}
    built.world.ids["model"] = MODEL
    return made


def _headers(site: Site, entry: Stream, visitor: str, keys: dict[str, str]) -> list[tuple[bytes, bytes]]:
    headers = [(b"host", HOST), (b"x-forwarded-host", b"evil.example"), (b"content-type", b"application/json")]
    if visitor != "stranger" and entry.by_key:
        headers.append((b"authorization", f"Bearer {keys[visitor]}".encode()))
    elif visitor != "stranger":
        headers.append((b"cookie", f"sessionid={site.world.cookies[visitor]}".encode()))
    return headers


def _path(entry: Stream, ids: dict[str, Any]) -> str:
    names = [part.strip("<>") for part in entry.path.split("/") if part.startswith("<")]
    path = entry.path
    for name in names:
        path = path.replace(f"<{name}>", str(ids[entry.ids.get(name, name)]))
    return f"/{path}"


async def _first_of(scope: dict[str, Any], body: bytes, *, until: str = "") -> tuple[int, str]:
    """The status, and what comes: the whole of a short answer; of one that goes on the first frame, or all `until`."""
    visit = ApplicationCommunicator(application, scope)
    await visit.send_input({"type": "http.request", "body": body, "more_body": False})
    start = await visit.receive_output(SECONDS)
    told = [repr(start["headers"])]
    goes_on = True
    while goes_on and (len(told) == 1 or until not in "".join(told)):
        part = await visit.receive_output(SECONDS)
        told.append(part.get("body", b"").decode(errors="replace"))
        goes_on = part.get("more_body", False)
    await visit.send_input({"type": "http.disconnect"})
    await visit.wait(SECONDS)
    return int(start["status"]), "\n".join(told)


@pytest.mark.parametrize("entry", STREAMS, ids=lambda entry: f"{entry.method}-{entry.path}-{entry.status}")
async def test_stream_gives_each_visitor_what_the_table_says(
    site: Site, hub: None, keys: dict[str, str], entry: Stream
) -> None:
    before = await database_sync_to_async(rows)()
    for visitor in VISITORS:
        path = _path(entry, site.world.ids)
        headers = _headers(site, entry, visitor, keys)
        scope = {
            "type": "http",
            "method": entry.method,
            "path": path,
            "query_string": b"",
            "headers": headers,
            "scheme": "http",
        }
        is_hers = visitor == "owner" and entry.status == 200 and "<generation_id>" in entry.path
        body = json.dumps(entry.body).encode() if entry.body else b""
        status, told = await _first_of(scope, body, until=MARK if is_hers else "")
        assert status == entry.expected(visitor), f"{visitor} {path}: {status} {told[:300]}"
        found = site.world.found_in(told) - site.world.found_in(path)
        assert visitor == "owner" or not found, f"{visitor} {path} tells of the owner: {sorted(found)}"
        assert "evil.example" not in told, path
    after = await database_sync_to_async(rows)()
    changed = compared(before, after)
    changed.pop("accounts_apikey", None)  # when a key was last used
    assert not changed, changed


@pytest.mark.parametrize("entry", SOCKETS, ids=lambda entry: "-".join(entry.ids) or "settled")
async def test_socket_gives_each_visitor_what_the_table_says(
    site: Site, hub: None, keys: dict[str, str], entry: Stream
) -> None:
    ids = site.world.ids
    is_busy = "busy" in entry.ids.values()
    follow, stop = _ask("follow", ids["settled"]), _ask("stop", ids["generation_id"])
    for visitor in VISITORS:
        path = _path(entry, ids)
        headers = [*_headers(site, entry, visitor, keys), (b"origin", ORIGIN)]
        hers = () if is_busy else (follow,)  # of what is being written it tells by itself
        asks = hers if visitor == "owner" else (stop,)
        code, told = await _socket(path, headers, *asks, until=plant("half" if is_busy else "answer"))
        assert code == entry.expected(visitor), f"{visitor} {path}: {code} {told[:300]}"
        assert visitor == "owner" or not site.world.found_in(told), f"{visitor} {path}: {told}"
    untouched = await database_sync_to_async(rows)()
    (row,) = [row for row in untouched["chat_generation"] if str(ids["generation_id"]) in row]
    assert row in site.all_rows()["chat_generation"], "somebody else's Stop was heard"


async def test_own_socket_reaches_nothing_of_another_conversation(site: Site, hub: None, keys: dict[str, str]) -> None:
    ids = site.world.ids
    headers = [*_headers(site, SOCKETS[0], "other", keys), (b"origin", ORIGIN)]
    asks = [_ask(kind, ids[name]) for kind in ("follow", "stop") for name in ("generation_id", "settled", "temporary")]
    code, told = await _socket(f"/ws/chat/{ids['others_conversation']}", headers, *asks, until="not_found")
    assert code == 0
    assert not site.world.found_in(told)


def _ask(kind: str, generation: object) -> dict[str, str]:
    return {"type": kind, "generation": str(generation), "after": ""}


@pytest.mark.parametrize("origin", [b"http://evil.example", b"null", b"http://localhost.evil.example", b""])
async def test_socket_of_another_origin_is_refused(site: Site, hub: None, keys: dict[str, str], origin: bytes) -> None:
    headers = [*_headers(site, SOCKETS[0], "owner", keys), (b"origin", origin)]
    code, told = await _socket(f"/ws/chat/{site.world.ids['busy']}", headers, until="nothing")
    assert code >= 1000, told
    assert not site.world.found_in(told)


async def _socket(path: str, headers: list[tuple[bytes, bytes]], *asks: dict[str, str], until: str) -> tuple[int, str]:
    """The code it was closed with (0: it stayed open), and what it told `until` then."""
    scope = {"type": "websocket", "path": path, "query_string": b"", "headers": headers, "subprotocols": []}
    visit = ApplicationCommunicator(application, scope)
    await visit.send_input({"type": "websocket.connect"})
    told: list[str] = []
    code = 0
    while not code and "".join(told).count(until) < max(1, len(asks)):
        message = await visit.receive_output(SECONDS)
        if message["type"] == "websocket.close":
            code = int(message.get("code", 1000))
        elif message["type"] == "websocket.accept":
            for ask in asks:
                await visit.send_input({"type": "websocket.receive", "text": json.dumps(ask)})
        else:
            told.append(message.get("text", ""))
    await visit.send_input({"type": "websocket.disconnect", "code": 1000})
    await visit.wait(SECONDS)
    return code, "\n".join(told)


async def test_key_of_nobody_and_key_without_scope_open_nothing(site: Site, hub: None) -> None:
    key = await database_sync_to_async(
        lambda: ApiKey.create(site.world.people["owner"], "narrow", scopes=("models",))[1]
    )()
    for given, path, method, expected in (
        ("sf_nothing", "/v1/models", "GET", 401),
        (key, "/v1/chat/completions", "POST", 403),
        (key, "/v1/models", "GET", 200),
    ):
        headers = [
            (b"host", HOST),
            (b"authorization", f"Bearer {given}".encode()),
            (b"content-type", b"application/json"),
        ]
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": b"",
            "headers": headers,
            "scheme": "http",
        }
        status, told = await _first_of(scope, json.dumps(CHAT).encode())
        assert status == expected, (path, told)
        assert not site.world.found_in(told)
