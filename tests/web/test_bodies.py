"""Bodies through the real server: refused before they are read, counted and timed while they come."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator

import httpx
import pytest

from chatsite.accounts.models import User
from chatsite.gate.limits import MARGIN_BYTES, STRANGER_BYTES
from chatsite.server.channel import MAX_HEADS_PER_ADDRESS
from tests.web.raw_client import RawClient, in_chunks, same_for_ever
from tests.web.strict_site import FILE_BYTES, SLOW_SECONDS, StrictSite

HUGE = 300 * 1024 * 1024
IN_BETWEEN = 1024 * 1024  # what buffers of sockets, ours and theirs, may hold of a body that nobody reads
PATHS = [
    "/",
    "/accounts/login/",
    "/accounts/signup/",
    "/admin/login/",
    "/chat/files/",
    "/transfer/import/",
    "/chat/live/",
    "/v1/chat/completions",
    "/v1/nothing",
    "/health/live",
    "/static/css/app.css",
    "/nothing/here",
]


# -- length


def test_a_huge_body_is_refused_on_every_path_before_it_is_read(server: StrictSite) -> None:
    with server.costing_nothing():
        for path in PATHS:
            with RawClient(server.url) as client:
                client.say(client.head("POST", path, f"Content-Length: {HUGE}"))
                num_bytes = client.pour(same_for_ever(HUGE))
                answer = client.answer()
            assert answer.status == 413, (path, answer.raw)
            assert num_bytes < IN_BETWEEN, path
            assert answer.headers["connection"] == "close"
            assert answer.num_answers == 1


def test_a_refusal_comes_without_a_byte_of_the_body(server: StrictSite) -> None:
    for path in PATHS:
        answer = server.ask(f"POST {path} HTTP/1.1\r\nHost: $HOST\r\nContent-Length: {HUGE}\r\n\r\n".encode())
        assert answer.status == 413, path


def test_a_body_without_an_end_is_cut_at_the_byte_too_many_on_every_path(server: StrictSite) -> None:
    with server.costing_nothing():
        for path in PATHS:
            with RawClient(server.url) as client:
                client.say(client.head("POST", path, "Transfer-Encoding: chunked"))
                num_bytes = client.pour(in_chunks(HUGE))
                answer = client.answer()
            expected = {"/v1/chat/completions": 401, "/v1/nothing": 404}.get(path, 413)
            assert answer.status in (expected, 413), (path, answer.raw)
            assert num_bytes < STRANGER_BYTES + IN_BETWEEN, path


def test_chunks_of_one_byte_are_counted_as_well(server: StrictSite) -> None:
    with RawClient(server.url) as client, server.costing_nothing():
        client.say(client.head("POST", "/accounts/login/", "Transfer-Encoding: chunked"))
        client.pour(_crumbs(STRANGER_BYTES + 1))
        assert client.answer().status == 413


def _crumbs(num_bytes: int) -> Iterator[bytes]:
    for _ in range(num_bytes // 1024 + 1):
        yield b"1\r\nx\r\n" * 1024


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "BREW"])
def test_what_is_not_a_post_has_hardly_a_body(server: StrictSite, method: str) -> None:
    with RawClient(server.url) as client:
        client.say(client.head(method, "/", "Content-Length: 100000"))
        assert client.answer().status == 413


def test_a_person_may_send_what_a_stranger_may_not(server: StrictSite, cookie: str) -> None:
    text = b"csrfmiddlewaretoken=wrong&text=" + b"x" * 200_000
    with RawClient(server.url) as client:
        client.say(client.head("POST", "/chat/", f"Content-Length: {len(text)}"))
        assert client.answer().status == 413
    for forged in (f"sessionid={cookie[:-1]}", "sessionid=", f"session={cookie}"):
        with RawClient(server.url) as client:
            client.say(client.head("POST", "/chat/", f"Content-Length: {len(text)}", f"Cookie: {forged}"))
            assert client.answer().status == 413
    with RawClient(server.url) as client:
        client.say(client.head("POST", "/chat/", f"Content-Length: {len(text)}", f"Cookie: sessionid={cookie}") + text)
        assert client.next_answer().status == 403  # Django has read it, and wants its token


def test_a_session_that_was_ended_or_whose_owner_is_switched_off_is_a_strangers(
    server: StrictSite, cookie: str, alice: User
) -> None:
    def status() -> int:
        with RawClient(server.url) as client:
            client.say(client.head("POST", "/chat/", "Content-Length: 200000", f"Cookie: sessionid={cookie}"))
            return 0 if not client.hears_something(0.3) else client.answer().status

    assert status() == 0  # waits for the body
    User.objects.filter(pk=alice.pk).update(is_active=False)
    assert status() == 413
    User.objects.filter(pk=alice.pk).update(is_active=True, password="another")
    assert status() == 413


def test_files_of_the_size_that_is_allowed_arrive_and_leave_nothing(server: StrictSite, cookie: str) -> None:
    text = ("word " * (FILE_BYTES // 5)).encode()
    with httpx.Client(base_url=server.url, cookies={"sessionid": cookie}, timeout=60.0) as browser:
        page = browser.get("/").text
        token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page)
        assert token
        data = {"csrfmiddlewaretoken": token[1]}
        headers = {"Referer": server.url, "HX-Request": "true"}
        for path in ("/chat/files/", "/transfer/import/"):
            fitting = browser.post(path, data=data, files={"file": ("a.txt", text)}, headers=headers)
            assert fitting.status_code in (200, 400), path
            assert "a.txt" in fitting.text, path  # the view says what it thinks of it
        large = text + b"x" * (MARGIN_BYTES * 2)
        refused = browser.post("/chat/files/", data=data, files={"file": ("a.txt", large)}, headers=headers)
        assert refused.status_code == 413
        assert refused.headers["hx-retarget"] == "#refusal"
        assert 'data-code="request_too_large"' in refused.text
    server.wait_until_flat()


def test_a_client_that_leaves_in_the_middle_leaves_nothing_on_disk(server: StrictSite, cookie: str) -> None:
    with RawClient(server.url) as client:
        length = f"Content-Length: {FILE_BYTES}"
        client.say(client.head("POST", "/transfer/import/", length, f"Cookie: sessionid={cookie}"))
        client.say(b"x" * (FILE_BYTES - 1))
        deadline = time.monotonic() + 10
        while not server.disk():
            assert time.monotonic() < deadline, "nothing was written"
            time.sleep(0.01)
    server.wait_until_flat()


def test_permission_to_go_on_is_given_by_who_reads_the_body(server: StrictSite, cookie: str) -> None:
    with RawClient(server.url) as client:
        client.say(client.head("POST", "/", f"Content-Length: {HUGE}", "Expect: 100-continue"))
        answer = client.answer()
        assert answer.status == 413
        assert b"100 Continue" not in answer.raw
    with RawClient(server.url) as client:
        client.say(client.head("POST", "/accounts/login/", "Content-Length: 3", "Expect: 100-continue"))
        assert client.socket.recv(1024) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.say(b"a=b")
        assert client.next_answer().status == 403


def test_requests_with_bodies_follow_each_other_on_one_connection(server: StrictSite) -> None:
    with RawClient(server.url) as client:
        post = client.head("POST", "/v1/nothing", "Content-Length: 3") + b"a=b"
        pieces = client.head("POST", "/accounts/login/", "Transfer-Encoding: chunked") + b"3\r\na=b\r\n0\r\n\r\n"
        for _ in range(2):
            client.say(client.head("POST", "/accounts/login/", "Content-Length: 3") + b"a=b")
            assert client.next_answer().status == 403
            client.say(pieces)
            assert client.next_answer().status == 403
        client.say(post + client.head("GET", "/health/live", "Connection: close"))
        assert client.answer().raw.endswith(b'{"live": true}')


# -- pace


def test_slow_clients_are_sent_off_and_keep_nobody_waiting(server: StrictSite, cookie: str) -> None:
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(RawClient(server.url)) for _ in range(60)]
        silent, headless, bodiless, dribbling = slow[:10], slow[10:25], slow[25:45], slow[45:]
        for client in headless:
            client.say(b"POST / HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        for client in bodiless:
            client.say(client.head("POST", "/accounts/login/", "Content-Length: 1000") + b"a")
        for client in dribbling:
            client.say(client.head("POST", "/accounts/login/", "Transfer-Encoding: chunked"))
        began = time.monotonic()
        assert httpx.get(f"{server.url}/accounts/login/", timeout=30.0).status_code == 200
        with RawClient(server.url) as normal:
            normal.say(normal.head("POST", "/accounts/login/", "Content-Length: 3") + b"a=b")
            assert normal.next_answer().status == 403
        waiting = set(dribbling)
        while waiting:  # a byte now and then, never still for as long as is allowed
            assert time.monotonic() - began < 60.0
            for client in list(waiting):
                if client.hears_something():
                    waiting.remove(client)
                else:
                    with contextlib.suppress(OSError):
                        client.say(b"1\r\nx\r\n")
            time.sleep(0.1)
        assert time.monotonic() - began >= SLOW_SECONDS
        assert {client.answer().status for client in bodiless + dribbling + headless} == {408}
        assert {client.answer().raw for client in silent} == {b""}


def test_connections_that_say_nothing_are_so_many_and_no_more(server: StrictSite) -> None:
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(RawClient(server.url)) for _ in range(MAX_HEADS_PER_ADDRESS + 1)]
        assert silent[-1].rest() == b""  # at once, though it may stay silent for as long as the others
        assert not silent[0].hears_something()
    with RawClient(server.url) as client:
        client.say(client.head("GET", "/health/live"))
        assert client.next_answer().status == 200


def test_a_stream_is_not_cut_for_being_slow(server: StrictSite, cookie: str) -> None:
    """Neither a stream nor a connection at rest is a slow request."""
    with httpx.Client(base_url=server.url, cookies={"sessionid": cookie}, timeout=30.0) as browser:
        began = time.monotonic()
        with browser.stream("GET", "/chat/live/") as response:
            assert response.status_code == 200
            pieces = response.iter_text()
            assert "retry" in next(pieces)
            with RawClient(server.url) as resting:
                resting.say(resting.head("GET", "/health/live"))
                assert resting.next_answer().status == 200
                assert not resting.hears_something(SLOW_SECONDS * 1.2)
                resting.say(resting.head("GET", "/health/live"))
                assert resting.next_answer().status == 200
            assert time.monotonic() - began > SLOW_SECONDS
            assert not response.is_closed
