"""The stream through the real server: real sockets, Daphne, a session cookie."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import redis as redis_py
from django.db import connection
from django.test import Client

from chatsite.accounts.models import User
from chatsite.chat.actions import send
from chatsite.chat.generation import record
from chatsite.chat.models import Conversation
from chatsite.chat.streams.limits import RECHECK_SECONDS
from inference.coordination import redis_keys
from tests.web.api_server import serving
from tests.web.chat_worker import StepWorker
from tests.web.sse_client import Shown, parse

SECONDS = 15.0


@pytest.fixture
def server(transactional_db: None) -> Iterator[str]:
    with serving(str(connection.settings_dict["NAME"])) as base_url:
        yield base_url


@pytest.fixture
def cookie(alice: User) -> dict[str, str]:
    browser = Client()
    browser.force_login(alice)
    return {"sessionid": browser.cookies["sessionid"].value}


def wait_until(condition: Callable[[], Any], seconds: float = SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_streams_over_real_sockets(
    alice: User,
    bob: User,
    conversation: Conversation,
    worker: StepWorker,
    server: str,
    cookie: dict[str, str],
    redis: redis_py.Redis,
) -> None:
    """Refused to others; live; who leaves or signs out is noticed at once; who never reads disturbs nobody."""
    sent = send.send_message(alice, conversation, "question")
    attempt = worker.claim().start()
    url = f"{server}/chat/generations/{sent.generation.pk}/events"
    channel = redis_keys.news(sent.generation.pk)

    def num_subscribers() -> int:
        return int(redis.pubsub_numsub(channel)[0][1])

    assert httpx.get(url).status_code == 401
    stranger = Client()
    stranger.force_login(bob)
    strange_cookie = {"sessionid": stranger.cookies["sessionid"].value}
    assert httpx.get(url, cookies=strange_cookie).status_code == 404
    assert httpx.get(url.replace(str(sent.generation.pk), "x"), cookies=cookie).status_code == 404

    with httpx.Client(cookies=cookie, timeout=SECONDS) as client, client.stream("GET", url) as response:
        assert response.status_code == 200
        attempt.write("first ")
        body = ""
        for piece in response.iter_text():
            body += piece
            if Shown().take(parse(body)).content == "first ":
                break
        wait_until(lambda: num_subscribers() == 1)
    left_at = time.monotonic()
    wait_until(lambda: num_subscribers() == 0)
    assert time.monotonic() - left_at < 2.0
    cursor = [event.id for event in parse(body) if event.id][-1]

    there = Client()
    there.force_login(alice)
    elsewhere = {"sessionid": there.cookies["sessionid"].value}
    with (
        httpx.Client(cookies=elsewhere, timeout=60) as client,
        client.stream("GET", f"{server}/chat/live/") as response,
    ):
        pieces = response.iter_text()
        next(pieces)
        there.logout()  # in this process, not the server's
        ended_at = time.monotonic()
        assert "again" not in "".join(pieces)
        assert time.monotonic() - ended_at < RECHECK_SECONDS - 1, "told, rather than asked after"

    parts = urlsplit(server)
    with socket.create_connection((parts.hostname, parts.port)) as deaf:  # asks, and never reads
        head = f"GET {urlsplit(url).path} HTTP/1.1\r\nHost: {parts.netloc}\r\nCookie: sessionid={cookie['sessionid']}"
        deaf.sendall(f"{head}\r\n\r\n".encode())
        wait_until(lambda: num_subscribers() == 1)
        attempt.write(*["x" * 1000] * 100)
        attempt.finish()
        record.record(attempt.id)
        headers = {"Last-Event-ID": cursor}
        rest = httpx.get(url, cookies=cookie, headers=headers, timeout=SECONDS).text  # ends by itself
        shown = Shown(content="first ").take(parse(rest))
        assert shown.done is not None
        assert shown.content == attempt.text
        wait_until(lambda: num_subscribers() == 0)  # nor does the deaf one hold anything in Redis
