"""What is not well formed, at the real server: heads, lengths, hosts, JSON, frames of sockets."""

from __future__ import annotations

import contextlib
import re
import struct
import zlib

import httpx
import pytest

from chatsite.accounts.models import ApiKey, User
from chatsite.chat.models import Conversation
from chatsite.server.sockets import MAX_MESSAGE_BYTES
from tests.web.raw_client import PIECE, RawClient, same_for_ever
from tests.web.strict_site import StrictSite

CR = "\r\n"


@pytest.mark.parametrize(
    "lines",
    [
        ["Content-Length: 3", "Content-Length: 3"],
        ["Content-Length: 3", "Content-Length: 4"],
        ["Content-Length: 3", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: chunked", "Content-Length: 3"],
        ["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: chunked, chunked"],
        ["Transfer-Encoding: gzip, chunked"],
        ["Transfer-Encoding: xchunked"],
        ["Content-Length: +3"],
        ["Content-Length: -3"],
        ["Content-Length: 3, 3"],
        ["Content-Length: 0x3"],
        ["Content-Length: 3 3"],
        ["Content-Length: " + "9" * 5_000],
        ["Content-Length : 3"],
        ["Content-Length: 3\x00"],
        ["Content-Length: 3\nX: y"],
        ["Upgrade: websocket", "Content-Length: 3"],
    ],
)
def test_a_length_that_two_readers_could_read_differently_is_refused(server: StrictSite, lines: list[str]) -> None:
    smuggled = "abcGET /health/live HTTP/1.1\r\nHost: $HOST\r\n\r\n"
    text = CR.join(["POST /accounts/login/ HTTP/1.1", "Host: $HOST", *lines, "", smuggled])
    answer = server.ask(text.encode("latin-1"))
    assert answer.status == 400, answer.raw
    assert answer.num_answers == 1


def test_a_length_that_only_looks_like_one_is_none(server: StrictSite) -> None:
    """Whoever reads it as a length would take the next request for a body."""
    with RawClient(server.url) as client:
        client.say(client.head("POST", "/accounts/login/", "Content_Length: 300") + client.head("GET", "/health/live"))
        assert client.next_answer().status == 403
        assert client.next_answer().status == 200


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (f"GET /{'x' * 20_000} HTTP/1.1\r\nHost: $HOST\r\n\r\n", 414),
        (f"GET /?{'x' * 100_000}", 414),
        (f"GET / HTTP/1.1\r\nHost: $HOST\r\nCookie: {'x' * 20_000}\r\n\r\n", 431),
        ("GET / HTTP/1.1\r\nHost: $HOST\r\n" + f"Cookie: {'x' * 1_000}\r\n" * 20 + "\r\n", 431),
        ("GET / HTTP/1.1\r\nHost: $HOST\r\n" + "X: y\r\n" * 300 + "\r\n", 431),
        (f"GET / HTTP/1.1\r\nHost: $HOST\r\nX: {'x' * 100_000}", 431),
        ("GET / HTTP/1.1\r\nHost: $HOST\r\nX y\r\n\r\n", 400),
        ("GET /\r\n\r\n", 400),
    ],
    ids=["line", "query without end", "cookie", "cookies", "many", "header without end", "no colon", "no version"],
)
def test_a_head_has_a_size_and_a_form(server: StrictSite, head: str, status: int) -> None:
    assert server.ask(head.encode()).status == status


def test_a_forged_host_gets_no_page_and_is_written_into_none(server: StrictSite) -> None:
    for host in ("evil.example", "127.0.0.1:80@evil.example", "evil.example#127.0.0.1", ""):
        for path in ("/", "/accounts/login/?next=https://evil.example/", "/accounts/signup/"):
            answer = server.ask(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            assert answer.status == 400, (host, path)
            assert b"evil.example" not in answer.raw


@pytest.mark.parametrize(
    ("target", "header"),
    [
        ("//evil.example/..", ""),
        ("/%2f%2fevil.example", ""),
        ("/%5c%5cevil.example", ""),
        ("http://evil.example/chat", ""),
        ("/chat", "Daphne-Root-Path: //evil.example"),
        ("/chat/", "Daphne_Root_Path: //evil.example"),
        ("/accounts/login/", "X-Forwarded-Host: evil.example"),
        ("/accounts/login/", "Forwarded: host=evil.example"),
        ("/chat/live", "X-Forwarded-Proto: evil.example"),
    ],
)
def test_no_request_is_sent_on_to_another_host(server: StrictSite, target: str, header: str) -> None:
    lines = [line for line in (f"GET {target} HTTP/1.1", "Host: $HOST", header, "Connection: close") if line]
    answer = server.ask(CR.join([*lines, "", ""]).encode())
    assert answer.status in (200, 301, 302, 404, 405)
    assert not re.search(r"""(?:href|src|action|hx-\w+)=["']?[^"' >]*evil""", answer.raw.decode())
    assert not answer.headers.get("location", "/").startswith(("//", "http", "\\"))


@pytest.mark.parametrize(
    "body", [b"[" * 1_000_000, b'{"messages":' + b'{"a":' * 200_000, b'{"model":' + b"9" * 1_000_000 + b"}"]
)
def test_json_of_any_depth_is_a_400(server: StrictSite, alice: User, body: bytes) -> None:
    headers = {"Authorization": f"Bearer {ApiKey.create(alice, 'test')[1]}"}
    answer = httpx.post(f"{server.url}/v1/chat/completions", content=body, headers=headers, timeout=30.0)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


def multipart(*parts: str, boundary: str = "b") -> tuple[str, bytes]:
    text = "".join(f"--{boundary}\r\n{part}\r\n" for part in parts) + f"--{boundary}--\r\n"
    return f"multipart/form-data; boundary={boundary}", text.encode()


A_FILE = 'Content-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\nx'
A_FIELD = 'Content-Disposition: form-data; name="a"\r\n\r\nx'


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/x-www-form-urlencoded", b"a&" * 30_000),
        multipart(*[A_FIELD] * 1_050),
        multipart(*[A_FILE] * 150),
        multipart(A_FIELD, boundary="b" * 5_000),
        multipart(f"X-Large: {'x' * 50_000}\r\n{A_FIELD}"),
        multipart("X: y\r\n" * 5_000 + A_FIELD),
        ("multipart/form-data", b"x"),
    ],
    ids=["fields", "parts", "files", "boundary", "header of a part", "headers of a part", "no boundary"],
)
def test_a_form_of_too_many_pieces_is_a_400(server: StrictSite, kind: str, body: bytes) -> None:
    with httpx.Client(base_url=server.url, timeout=30.0) as browser:
        browser.get("/accounts/login/")  # without a cookie no form is read at all
        answer = browser.post("/accounts/login/", content=body, headers={"Content-Type": kind})
    assert answer.status_code == 400


def test_a_body_may_not_hide_what_it_is_unpacked(server: StrictSite) -> None:
    """No encoding of a body is understood: nothing small becomes large."""
    small = zlib.compress(b"a" * 10_000_000)
    answer = httpx.post(
        f"{server.url}/accounts/login/", content=small, headers={"Content-Encoding": "deflate"}, timeout=30.0
    )
    assert answer.status_code == 403


# -- sockets


MASK = b"\x00" * 4
TEXT, MORE = 0x81, 0x01  # a whole message; the first piece of one


def open_socket(server: StrictSite, conversation: Conversation, cookie: str) -> RawClient:
    client = RawClient(server.url)
    client.say(
        client.head(
            "GET",
            f"/ws/chat/{conversation.pk}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
            "Sec-WebSocket-Version: 13",
            f"Origin: http://{client.host}",
            f"Cookie: sessionid={cookie}",
        )
    )
    got = b""
    while b"\r\n\r\n" not in got:
        got += client.socket.recv(1)
    assert got.startswith(b"HTTP/1.1 101"), got
    return client


def close_code(client: RawClient) -> int:
    """Of the first close frame that comes; what the socket tells before it is passed over."""
    frames = client.rest()
    while frames:
        kind, length = frames[0] & 0x0F, frames[1]
        start = 2
        if length == 126:
            length, start = int.from_bytes(frames[2:4], "big"), 4
        if kind == 8:
            return int.from_bytes(frames[start : start + 2], "big")
        frames = frames[start + length :]
    return 0


def test_a_message_of_a_socket_is_small(server: StrictSite, conversation: Conversation, cookie: str) -> None:
    large = 300 * 1024 * 1024
    with open_socket(server, conversation, cookie) as client, server.costing_nothing():
        client.say(struct.pack("!BBQ", TEXT, 0x80 | 127, large) + MASK)
        client.pour(same_for_ever(large))
        assert close_code(client) == 1009
    with open_socket(server, conversation, cookie) as client, server.costing_nothing():
        piece = struct.pack("!BBH", MORE, 0x80 | 126, MAX_MESSAGE_BYTES) + MASK + b"x" * MAX_MESSAGE_BYTES
        rest = struct.pack("!BBH", 0, 0x80 | 126, len(PIECE)) + MASK + PIECE
        client.pour([piece, *[rest] * 1_000])
        assert close_code(client) == 1009


def test_a_socket_that_is_talked_at_without_a_pause_is_closed(
    server: StrictSite, conversation: Conversation, cookie: str
) -> None:
    frame = struct.pack("!BBH", TEXT, 0x80 | 126, 4_000) + MASK + b"x" * 4_000
    with open_socket(server, conversation, cookie) as client, server.costing_nothing():
        client.socket.settimeout(30)
        with contextlib.suppress(OSError):
            for _ in range(5_000):
                client.say(frame * 10)
        assert close_code(client) == 4429


def test_a_stranger_cannot_talk_over_a_socket(server: StrictSite, conversation: Conversation) -> None:
    with open_socket(server, conversation, "nobody") as client:
        assert close_code(client) == 4401
