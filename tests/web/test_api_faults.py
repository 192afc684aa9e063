"""`/v1` when things break: early leavers, a Redis that is full, away or emptied, long silence, odd input.

The consumers run in this process, below the server that would carry them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import redis as redis_py
from asgiref.testing import ApplicationCommunicator
from channels.routing import URLRouter
from django.conf import settings
from django.db import connection
from django.utils import timezone

from chatsite.accounts.models import ApiKey, User
from chatsite.api import completion, consumers, errors, schemas
from chatsite.api.consumers import in_thread
from chatsite.api.routing import http_urlpatterns
from chatsite.chat import tasks
from chatsite.chat.models import Generation
from chatsite.chat.streams.hub import hub
from inference.client import InferenceClient
from inference.errors import StoreUnavailable
from tests.web.api_worker import MODEL, ScriptedWorker, wait_until

application = URLRouter(http_urlpatterns)


@pytest.fixture
def user(transactional_db: None) -> User:
    return User.objects.create_user("ada")


@pytest.fixture
def key(user: User) -> str:
    return ApiKey.create(user)[1]


@pytest.fixture
def worker(redis: redis_py.Redis, valkey_url: str, transactional_db: None) -> Iterator[ScriptedWorker]:
    with ScriptedWorker(valkey_url, dataclasses.replace(settings.INFERENCE, lease_seconds=60.0)) as worker:
        yield worker


@pytest.fixture
async def request_of(key: str) -> AsyncIterator[Any]:
    """Makes a request to the consumers; whatever it leaves open is closed at the end."""
    opened = []

    async def make(body: bytes | dict[str, Any], *, method: str = "POST", path: str = "/v1/chat/completions") -> Any:
        headers = [(b"authorization", f"Bearer {key}".encode())]
        scope = {"type": "http", "method": method, "path": path, "headers": headers, "scheme": "http"}
        communicator = ApplicationCommunicator(application, scope)
        opened.append(communicator)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        await communicator.send_input({"type": "http.request", "body": data, "more_body": False})
        return communicator

    yield make
    for communicator in opened:
        await communicator.send_input({"type": "http.disconnect"})
        await communicator.wait(timeout=10)
    await hub().close()


def body(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], **fields}


async def until(communicator: Any, wanted: bytes) -> bytes:
    """What is sent, up to and with the piece that has `wanted` in it."""
    sent = b""
    while wanted not in sent:
        sent += (await communicator.receive_output(timeout=10)).get("body", b"")
    return sent


async def status_of(communicator: Any) -> tuple[int, dict[str, Any]]:
    start = await communicator.receive_output(timeout=10)
    answer = await communicator.receive_output(timeout=10)
    return start["status"], json.loads(answer["body"])


async def eventually(condition: Any) -> None:
    await in_thread(wait_until, condition)


def num_rows(status: str) -> int:
    return Generation.objects.filter(status=status).count()


async def test_a_silent_stream_is_kept_awake(
    worker: ScriptedWorker, request_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "HEARTBEAT_SECONDS", 0.05)
    stream = await request_of(body("wait", stream=True))
    sent = await until(stream, b": ping\n\n: ping\n\n")
    assert sent.startswith(b": queued\n\n")
    assert b"data:" not in sent


async def test_a_client_that_leaves_while_it_is_being_admitted_leaves_nothing_running(
    worker: ScriptedWorker, request_of: Any, user: User
) -> None:
    """The row was written by a thread that nobody waited for any more, and ran to its end unread."""
    with holding_user(user):  # admission waits for this lock
        stream = await request_of(body("wait", stream=True))
        await eventually(lambda: num_waiting_for_locks() > 0)
        await stream.send_input({"type": "http.disconnect"})
    await stream.wait(timeout=10)
    await eventually(lambda: num_rows("stopped") == 1)
    assert await in_thread(num_rows, "active") == 0


async def test_a_full_store_is_a_503_and_what_was_written_is_swept_away(
    worker: ScriptedWorker, request_of: Any, redis: redis_py.Redis
) -> None:
    redis.config_set("maxmemory", 1)
    try:
        status, answer = await status_of(await request_of(body("hello")))
    finally:
        redis.config_set("maxmemory", 0)
    assert (status, answer["error"]["code"]) == (503, "store_unavailable")
    assert (await in_thread(Generation.objects.get)).stop_requested
    await in_thread(sweep_now)
    assert await in_thread(num_rows, "stopped") == 1
    assert worker.requests == []


def test_an_unreachable_store_refuses_before_anything_is_written(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    away = InferenceClient(dataclasses.replace(settings.INFERENCE, redis_url="redis://127.0.0.1:1/0"))
    monkeypatch.setattr(completion, "inference_client", lambda: away)
    request = schemas.parse(json.dumps(body("hello")).encode())
    with contextlib.closing(away), pytest.raises(StoreUnavailable):
        completion.admit(user, request)
    assert not Generation.objects.exists()


def test_a_full_site_refuses_and_says_when_to_come_again(worker: ScriptedWorker, user: User, site: Any) -> None:
    site(max_waiting=1)
    Generation.objects.create(user=user, model=MODEL)
    request = schemas.parse(json.dumps(body("hello")).encode())
    with pytest.raises(errors.Unavailable) as caught:
        completion.admit(user, request)
    assert (caught.value.code, caught.value.retry_after_seconds) == ("site_busy", errors.RETRY_WORKER_SECONDS)
    assert Generation.objects.count() == 1


async def test_a_stream_whose_log_is_lost_ends_with_an_error_and_stops_the_second_try(
    worker: ScriptedWorker, request_of: Any, redis: redis_py.Redis
) -> None:
    """What was sent cannot be taken back, and two answers must not be sent as one."""
    stream = await request_of(body("hold", stream=True))
    await until(stream, b"One moment")
    await lose_everything(worker, redis)
    sent = await until(stream, b'"error"')
    assert b"answer_interrupted" in sent
    assert b"One moment" not in sent
    assert b"[DONE]" not in sent
    await eventually(lambda: num_rows("stopped") == 1)


async def test_an_answer_in_one_piece_survives_the_loss_of_its_log(
    worker: ScriptedWorker, request_of: Any, redis: redis_py.Redis, user: User
) -> None:
    whole = await request_of(body("hold"))
    await eventually(lambda: len(worker.requests) == 1)
    await lose_everything(worker, redis)
    await eventually(lambda: len(worker.requests) == 2)
    worker.let_go()
    status, answer = await status_of(whole)
    assert status == 200
    assert answer["choices"][0]["message"]["content"] == "One moment"


async def lose_everything(worker: ScriptedWorker, redis: redis_py.Redis) -> None:
    """Redis forgets all, and the sweeper enters what Postgres still has."""
    redis.flushall()
    worker.announce()
    await in_thread(sweep_now)


def sweep_now() -> None:
    """Sweep as if everything active had been so for long."""
    Generation.objects.update(created_at=timezone.now() - datetime.timedelta(minutes=1))
    tasks.sweep()


async def test_a_body_in_pieces_is_one_body_and_what_follows_a_refusal_is_ignored(request_of: Any, key: str) -> None:
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/chat/completions",
        "headers": [(b"authorization", f"Bearer {key}".encode())],
        "scheme": "http",
    }
    pieces = ApplicationCommunicator(application, scope)
    for piece in (b"[", b"]"):
        await pieces.send_input({"type": "http.request", "body": piece, "more_body": piece == b"["})
    assert (await status_of(pieces))[0] == 400  # a list is no request
    await pieces.send_input({"type": "http.disconnect"})
    await pieces.wait()

    large = ApplicationCommunicator(application, scope)
    for _ in range(6):
        await large.send_input({"type": "http.request", "body": b"x" * 1024 * 1024, "more_body": True})
    assert (await status_of(large))[0] == 413
    assert await large.receive_nothing()
    await large.send_input({"type": "http.disconnect"})
    await large.wait()


async def test_a_wrong_key_is_refused_before_the_rest_of_the_body_comes(transactional_db: None) -> None:
    for headers in ([], [(b"authorization", b"Bearer sf_wrong")], [(b"content-length", b"4000000")]):
        scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": headers, "scheme": "http"}
        stranger = ApplicationCommunicator(application, scope)
        await stranger.send_input({"type": "http.request", "body": b"{", "more_body": True})
        assert (await status_of(stranger))[0] == 401
        await stranger.send_input({"type": "http.disconnect"})
        await stranger.wait()


async def test_a_key_that_is_revoked_while_the_body_comes_is_refused(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "KNOWN_SECONDS", 0.0)
    headers = [(b"authorization", f"Bearer {key}".encode())]
    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": headers, "scheme": "http"}
    slow = ApplicationCommunicator(application, scope)
    await slow.send_input({"type": "http.request", "body": b"[", "more_body": True})
    assert await slow.receive_nothing()
    await in_thread(ApiKey.objects.update, revoked_at=timezone.now())
    await slow.send_input({"type": "http.request", "body": b"]", "more_body": False})
    assert (await status_of(slow))[0] == 401
    await slow.send_input({"type": "http.disconnect"})
    await slow.wait()


async def test_an_unforeseen_failure_is_a_500_that_reveals_nothing(
    request_of: Any, worker: ScriptedWorker, redis: redis_py.Redis
) -> None:
    redis.delete("{smolfleet}:workers")
    redis.set("{smolfleet}:workers", "no sorted set")
    status, answer = await status_of(await request_of(b"", method="GET", path="/v1/models"))
    redis.flushall()
    assert status == 500
    assert answer["error"] == {
        "message": "Something went wrong on our side.",
        "type": "server_error",
        "param": None,
        "code": "internal_error",
    }


@contextlib.contextmanager
def holding_user(user: User) -> Iterator[None]:
    """Another transaction holds the user's row for the length of the block."""
    is_held, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        with contextlib.closing(connection), connection.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("SELECT 1 FROM accounts_user WHERE id = %s FOR UPDATE", [user.pk])
            is_held.set()
            may_end.wait(20)
            cursor.execute("ROLLBACK")

    thread = threading.Thread(target=hold)
    thread.start()
    assert is_held.wait(10)
    try:
        yield
    finally:
        may_end.set()
        thread.join(10)


def num_waiting_for_locks() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
        return int(cursor.fetchone()[0])
