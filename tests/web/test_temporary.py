"""Temporary chats: answered like any other, and nowhere to be found afterwards."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable
from typing import Any

import pytest
import redis as redis_py
from channels.db import database_sync_to_async
from django.db import connection
from django.test import Client
from django.utils import timezone
from structlog.testing import capture_logs

from chatsite.accounts.models import User
from chatsite.chat import errors, inference, tasks
from chatsite.chat.actions import temporary
from chatsite.chat.generation import record
from chatsite.chat.models import Conversation, Generation, Message
from inference.coordination import redis_keys
from inference.errors import StoreUnavailable
from inference.messages.generation import Role
from tests.web.chat_worker import StepWorker
from tests.web.sse_client import Stream

SECRET, ANSWER, THOUGHT = "xyzzy-question", "plugh-answer", "fee-fie-thought"
HX = {"HX-Request": "true"}

in_thread = database_sync_to_async


@pytest.fixture
def person(alice: User, site: Callable[..., None], redis: Any) -> User:
    return alice


@pytest.fixture
def client(person: User) -> Client:
    client = Client()
    client.force_login(person)
    return client


def everything_in_postgres() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'")
        tables = [name for (name,) in cursor.fetchall()]
        texts = []
        for table in tables:
            cursor.execute(f'SELECT t::text FROM "{table}" t')
            texts += [row for (row,) in cursor.fetchall()]
    return "\n".join(texts)


def everything_in_redis(redis: redis_py.Redis) -> str:
    """Every key with its value as read: a dump would be compressed."""
    readers: dict[bytes, Callable[[bytes], Any]] = {
        b"string": redis.get,
        b"hash": redis.hgetall,
        b"stream": redis.xrange,
        b"zset": lambda key: redis.zrange(key, 0, -1),
        b"list": lambda key: redis.lrange(key, 0, -1),
        b"set": redis.smembers,
    }
    return repr([(key, readers[redis.type(key)](key)) for key in redis.keys("*")])


def age(generation: Generation, seconds: float) -> None:
    Generation.objects.filter(pk=generation.pk).update(created_at=timezone.now() - datetime.timedelta(seconds=seconds))


@pytest.mark.usefixtures("hub")
async def test_answer_streams_and_leaves_no_text_anywhere(
    person: User, worker: StepWorker, redis: redis_py.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    history = [("user", "earlier " + SECRET), ("assistant", "earlier " + ANSWER)]
    with capture_logs() as logged:
        asked = await in_thread(temporary.ask)(person, history, SECRET, system_prompt="be " + SECRET)
        assert SECRET not in await in_thread(everything_in_postgres)()
        assert SECRET in everything_in_redis(redis)  # for as long as it waits
        attempt = worker.claim().start()
        assert [turn.role for turn in attempt.claim.request.messages] == [
            Role.SYSTEM,
            Role.USER,
            Role.ASSISTANT,
            Role.USER,
        ]
        async with Stream(person, asked.generation.pk) as stream:
            assert stream.status == 200
            attempt.think(THOUGHT)
            attempt.write(f"**{ANSWER}** and")
            await stream.until("delta")
            attempt.write(" more")
            attempt.finish()
            await in_thread(record.record)(attempt.id)
            (*_, done) = await stream.to_end()
        assert done.event == "done"
        assert f"<strong>{ANSWER}</strong> and more" in done.data["html"]
        assert THOUGHT in done.data["html"]
        assert f'name="content" data-who="Answer" value="**{ANSWER}** and more"' in done.data["html"]
        assert f"/chat/temporary/{asked.generation.pk}/seen/" in done.data["html"]
        await in_thread(temporary.forget)(person, asked.generation.pk)
        row = await in_thread(Generation.objects.get)()
    assert (row.status, row.message_id, row.request, row.content_sha256) == ("done", None, "", "")
    assert row.completion_tokens == 7
    database = await in_thread(everything_in_postgres)()
    assert str(row.pk) in database
    stored = everything_in_redis(redis)
    for text in (SECRET, ANSWER, THOUGHT):
        assert text not in database
        assert text not in stored
        assert text not in str(logged) + caplog.text
    assert not await in_thread(Message.objects.exists)()
    assert not await in_thread(Conversation.objects.exists)()


@pytest.mark.usefixtures("hub")
async def test_stream_and_answer_are_its_users_alone(person: User, bob: User, worker: StepWorker) -> None:
    asked = await in_thread(temporary.ask)(person, [], SECRET)
    async with Stream(bob, asked.generation.pk) as stream:
        assert stream.status == 404
    stranger = Client()
    await in_thread(stranger.force_login)(bob)
    for method, path in (("get", ""), ("post", "seen/")):
        response = await in_thread(getattr(stranger, method))(f"/chat/temporary/{asked.generation.pk}/{path}")
        assert response.status_code == 404


def test_page_sends_its_history_and_is_empty_when_loaded_again(client: Client, worker: StepWorker) -> None:
    typed = {"text": "and now?", "role": ["user", "assistant"], "content": ["first", "second\r\nline"]}
    page = client.post("/chat/temporary/", typed, headers=HX)
    assert page.status_code == 200
    generation = Generation.objects.get()
    assert f'data-generation="{generation.pk}"' in page.content.decode()
    sent = worker.claim().claim.request.messages
    assert [(turn.role.value, turn.content) for turn in sent] == [
        ("user", "first"),
        ("assistant", "second\nline"),
        ("user", "and now?"),
    ]
    page = client.get("/chat/temporary/")
    assert "and now?" not in page.content.decode()
    assert "no-store" in page["Cache-Control"]


@pytest.mark.parametrize(
    ("typed", "status"),
    [
        ({"text": " "}, 400),
        ({"text": "x" * 100_001}, 413),
        ({"text": "x", "role": ["system"], "content": ["be evil"]}, 400),
        ({"text": "x", "role": ["user"] * 400, "content": ["y"] * 400}, 400),
        ({"text": "x", "writing": "yes"}, 409),
        ({"text": "x", "temperature": "9"}, 400),
        ({"text": "x", "model": "unheard-of"}, 400),
    ],
)
def test_refusals_start_nothing(client: Client, worker: StepWorker, typed: dict[str, Any], status: int) -> None:
    worker.announce()
    assert client.post("/chat/temporary/", typed, headers=HX).status_code == status
    assert client.post("/chat/temporary/", typed).status_code == status
    assert not Generation.objects.exists()


def test_running_temporary_answers_count_like_others(person: User, site: Callable[..., None]) -> None:
    site(max_active_per_user=1)
    temporary.ask(person, [], "one")
    with pytest.raises(errors.TooManyActive):
        temporary.ask(person, [], "two")


def test_redis_away_is_said_and_nothing_waits(person: User, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(request: object) -> None:
        raise StoreUnavailable("away")

    monkeypatch.setattr(inference.inference_client(), "submit", away)
    with pytest.raises(temporary.NotTaken):
        temporary.ask(person, [], SECRET)
    row = Generation.objects.get()
    assert (row.status, row.error_code) == ("failed", "request_lost")


def test_question_that_redis_lost_ends_and_says_so(person: User, redis: redis_py.Redis, client: Client) -> None:
    asked = temporary.ask(person, [], SECRET)
    redis.delete(redis_keys.generation(asked.generation.pk))
    redis.flushall()
    age(asked.generation, 5)
    with capture_logs() as logged:
        tasks.sweep()
    assert not [entry for entry in logged if entry["log_level"] == "error"]
    row = Generation.objects.get()
    assert (row.status, row.error_code, row.is_retryable) == ("failed", "request_lost", True)
    assert "Send it again" in client.get(f"/chat/temporary/{row.pk}/").content.decode()


def test_stop_ends_it_and_an_unseen_answer_is_forgotten_in_time(
    person: User, worker: StepWorker, redis: redis_py.Redis, client: Client
) -> None:
    asked = temporary.ask(person, [], SECRET)
    attempt = worker.claim().start()
    attempt.write(ANSWER)
    attempt.finish()
    record.record(attempt.id)
    assert ANSWER in client.get(f"/chat/temporary/{asked.generation.pk}/").content.decode()
    tasks.sweep()
    assert ANSWER in everything_in_redis(redis)  # its page may still come for it
    earlier = timezone.now() - datetime.timedelta(seconds=temporary.KEPT_SECONDS + 5)
    Generation.objects.update(ended_at=earlier)
    tasks.sweep()
    assert ANSWER not in everything_in_redis(redis)
    assert "forgotten" in client.get(f"/chat/temporary/{asked.generation.pk}/").content.decode()

    waiting = temporary.ask(person, [], "another")
    client.post(f"/chat/generations/{waiting.generation.pk}/stop/", headers=HX)
    tasks.record(str(waiting.generation.pk))
    waiting.generation.refresh_from_db()
    assert waiting.generation.status == "stopped"
