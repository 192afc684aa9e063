"""An account that is deleted leaves nothing behind, in Postgres and in Redis, but records that say who nobody was."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import re
from collections.abc import Callable
from typing import Any

import pytest
import redis as redis_py
from allauth.usersessions.models import UserSession
from channels.db import database_sync_to_async
from django.contrib.admin.models import LogEntry
from django.contrib.sessions.models import Session
from django.core.management import CommandError, call_command
from django.db import IntegrityError, transaction
from django.test import Client

from chatsite.accounts.models import ApiKey, User
from chatsite.api.authentication import authenticate
from chatsite.api.errors import Unauthorized
from chatsite.audit.models import AuditEntry
from chatsite.chat import inference
from chatsite.chat.actions import send
from chatsite.chat.generation import record
from chatsite.chat.models import Conversation, Generation, Message
from chatsite.chat.streams import sse, websocket
from chatsite.chat.streams.hub import Hub
from chatsite.privacy import erasure
from chatsite.review.models import AccessEvent, ReportOutcome
from inference.client import InferenceClient
from inference.coordination import redis_keys
from tests.web import traces
from tests.web.chat_worker import StepWorker
from tests.web.sse_client import Stream
from tests.web.test_actions import together
from tests.web.test_live import Window
from tests.web.test_ws import Socket
from tests.web.traces import EMAIL, MARK, NAME, Traces

PSEUDONYM = re.compile(r"deleted user [0-9a-f]{8}")
in_thread = database_sync_to_async


@pytest.fixture
def left(
    bob: User, sam: User, site: Callable[..., None], worker: StepWorker, redis: redis_py.Redis, settings: Any
) -> Traces:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # quick
    return traces.leave(bob, sam, worker, redis)


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def words_of(user: User) -> tuple[str, ...]:
    return (str(user.pk), user.pk.hex, NAME, EMAIL, MARK)


# -- what is left


def test_the_person_has_left_a_trace_in_every_model_that_can_name_one(left: Traces) -> None:
    """So that the tests below prove something, of models to come as well: these are to be added to `traces`."""
    empty = [
        f"{model._meta.label}.{name}"
        for model, name in traces.references()
        if not model._base_manager.filter(**{name: left.user.pk}).exists()
    ]
    assert empty == []


def test_no_row_of_any_table_names_the_person_or_has_what_they_wrote(left: Traces) -> None:
    words = words_of(left.user)
    assert len(traces.tables_with(*words)) > 20
    erasure.erase(left.user, left.user)
    for model, name in traces.references():
        assert not model._base_manager.filter(**{name: left.user.pk}).exists(), f"{model._meta.label}.{name}"
    assert traces.tables_with(*words) == {}
    assert [row for row in Session.objects.all() if str(left.user.pk) in str(row.get_decoded())] == []


def test_nothing_in_redis_names_the_person_or_has_what_they_wrote(left: Traces, redis: redis_py.Redis) -> None:
    words = words_of(left.user)
    ids = [str(pk) for pk in Generation.objects.filter(user=left.user, status="active").values_list("pk", flat=True)]
    assert len(ids) == 3
    found = traces.keys_with(redis, *words)
    for part in ("gen:", "log:", "rate:", "cache:", ":queue:", ":running"):
        assert any(part in key for key in found), part
    erasure.erase(left.user, left.user)
    assert traces.keys_with(redis, *words) == []
    assert [key for key in traces.keys_with(redis, *ids) if "celery" not in key] == []  # bells there ring for nobody


def test_whatever_redis_has_of_a_person_expires_by_itself(left: Traces, redis: redis_py.Redis) -> None:
    found = traces.keys_with(redis, *words_of(left.user))
    assert [key for key in found if redis.ttl(key) < 0] == []


def test_erasure_is_done_while_redis_is_away(
    left: Traces, settings: Any, monkeypatch: pytest.MonkeyPatch, redis: redis_py.Redis
) -> None:
    words = words_of(left.user)
    client = InferenceClient(dataclasses.replace(settings.INFERENCE, redis_url="redis://127.0.0.1:1/0"))
    with monkeypatch.context() as while_away:
        while_away.setattr(inference, "inference_client", lambda: client)
        erasure.erase(left.user, left.user)
    client.close()
    assert traces.tables_with(*words) == {}
    left.running.write(" goes on")  # until its end, for nobody
    left.running.finish()
    assert not record.record(left.running.id)
    assert not redis.exists(redis_keys.log(left.running.id), redis_keys.generation(left.running.id))


def test_others_keep_all_that_is_theirs(left: Traces, bob: User, sam: User) -> None:
    before = (
        Conversation.objects.filter(owner=bob).count(),
        list(Message.objects.filter(conversation__owner=bob).values_list("content", flat=True)),
        AccessEvent.objects.count(),
        ReportOutcome.objects.filter(feedback__message__conversation__owner=bob).count(),
    )
    erasure.erase(left.user, sam)
    assert before == (
        Conversation.objects.filter(owner=bob).count(),
        list(Message.objects.filter(conversation__owner=bob).values_list("content", flat=True)),
        AccessEvent.objects.count(),
        ReportOutcome.objects.filter(feedback__message__conversation__owner=bob).count(),
    )
    assert set(User.objects.values_list("username", flat=True)) == {"bob", "sam"}


# -- what is refused and stopped from then on


def test_links_keys_and_sessions_open_nothing_any_more(left: Traces) -> None:
    assert Client().get(f"/s/{left.link.token}/").status_code == 200
    assert authenticate(f"Bearer {left.secret}").user == left.user
    assert left.unlisted.get("/").status_code == 200
    erasure.erase(left.user, left.user)
    assert Client().get(f"/s/{left.link.token}/").status_code == 404
    with pytest.raises(Unauthorized):
        authenticate(f"Bearer {left.secret}")
    for client in (left.browser, left.unlisted):
        assert client.get("/").status_code == 302
    assert not UserSession.objects.exists()


def test_worker_is_told_to_stop_and_refused(left: Traces, worker: StepWorker, redis: redis_py.Redis) -> None:
    with redis.pubsub(ignore_subscribe_messages=True) as stops:
        stops.subscribe(redis_keys.STOPS)
        assert stops.get_message(timeout=1) is None  # subscribed
        erasure.erase(left.user, left.user)
        told = [stops.get_message(timeout=5) for _ in left.claimed]
    assert {message["data"].decode() for message in told} == left.claimed
    with pytest.raises(AssertionError):
        left.running.write("more")
    assert worker.room.claim("scripted", worker.name) is None  # nor does anything wait


async def test_open_streams_and_sockets_end(left: Traces, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((sse, "PING_SECONDS"), (sse, "RECHECK_SECONDS")):
        monkeypatch.setattr(module, name, 0.05)
    monkeypatch.setattr(websocket, "RECHECK_SECONDS", 0.05)
    monkeypatch.setattr(websocket, "LOOK_SECONDS", 0.05)
    session = left.unlisted.session
    answer = Stream(left.user, left.running.id)
    answer.communicator.scope["session"] = session
    socket = Socket(left.user, (await in_thread(_conversation_of)(left)).pk)
    socket.communicator.scope["session"] = session
    async with answer, Window(left.user, session=session) as window, socket:
        await answer.until_text(f"half an answer, {MARK}")
        await window.until("stale")
        await socket.until("delta")
        await in_thread(erasure.erase)(left.user, left.user)
        async with asyncio.timeout(10):
            await answer.to_end()
            await window.to_end()
            assert await socket.until_closed() == websocket.UNAUTHENTICATED
    assert not any(event.event == "done" for event in answer.events)


def _conversation_of(left: Traces) -> Conversation:
    return Conversation.objects.get(messages__generation=left.running.id)


# -- what stays, and how it speaks of the person


def test_records_stay_under_one_pseudonym(left: Traces, sam: User) -> None:
    num_entries, num_events = AuditEntry.objects.count(), AccessEvent.objects.count()
    erasure.erase(left.user, sam)
    assert AccessEvent.objects.count() == num_events
    assert AuditEntry.objects.count() > num_entries
    names = {
        *AuditEntry.objects.values_list("actor_name", flat=True),
        *AuditEntry.objects.values_list("subject_name", flat=True),
        *AccessEvent.objects.values_list("actor_name", flat=True),
    } - {"", "sam", "bob"}
    assert len(names) == 1
    assert PSEUDONYM.fullmatch(*names)
    deletion = AuditEntry.objects.get(action="account.deleted")
    assert (deletion.actor_name, deletion.subject_name) == ("sam", *names)
    own = AccessEvent.objects.get(actor_name__in=names)
    assert (own.actor, own.ip, own.reason) == (None, None, "a report that deleted user handles")
    of_them = AccessEvent.objects.get(actor=sam)
    assert (of_them.subject, of_them.ip) == (None, "10.0.0.3")
    assert of_them.reason == "deleted user (deleted user) asked for help"


def test_who_leaves_by_themselves_is_told_of_once(alice: User) -> None:
    erasure.erase(alice, alice)
    entry = AuditEntry.objects.get(action="account.deleted")
    assert PSEUDONYM.fullmatch(entry.actor_name)
    assert (entry.actor, entry.subject_name, entry.ip) == (None, "", None)


@pytest.mark.parametrize(
    "change",
    [
        {"actor_name": "somebody"},
        {"actor_name": "deleted user 1", "ip": None},
        {"actor": None, "actor_name": "somebody", "ip": None},
        {"actor": None, "actor_name": "deleted user 1"},
        {"actor": None, "actor_name": "deleted user 1", "ip": None, "reason": "another"},
        {"reason": "another"},
        {"ip": None},
    ],
)
def test_nothing_else_about_an_access_record_can_change(alice: User, change: dict[str, Any]) -> None:
    event = AccessEvent.objects.create(
        actor=alice, actor_name="alice", conversation_key="x", reason="a reason", ip="10.0.0.1"
    )
    with pytest.raises(IntegrityError), transaction.atomic():
        AccessEvent._base_manager.filter(pk=event.pk).update(**change)


def test_name_that_went_can_be_taken_again_and_gets_nothing_of_the_old(alice: User, conversation: Conversation) -> None:
    erasure.erase(alice, alice)
    again = User.objects.create_user("alice", email=alice.email)
    assert again.pk != alice.pk
    assert not Conversation.objects.exists()
    assert not AuditEntry.objects.filter(actor_name="alice").exists()
    assert [entry.action for entry in AuditEntry.objects.filter(subject=again)] == ["account.created"]


# -- who may go, and together with what


def test_last_administrator_stays(sam: User, alice: User) -> None:
    with pytest.raises(erasure.ErasureRefused, match="“sam” is the last administrator"):
        erasure.erase(sam, sam)
    off = User.objects.create_user("off", is_superuser=True, is_active=False)
    with pytest.raises(erasure.ErasureRefused):
        erasure.erase(sam, sam)
    erasure.erase(off, sam)  # who cannot sign in is no loss
    User.objects.filter(pk=alice.pk).update(is_superuser=True)
    erasure.erase(sam, sam)
    assert list(User.objects.values_list("username", flat=True)) == ["alice"]


def test_of_two_administrators_who_leave_at_once_one_stays(sam: User) -> None:
    tom = User.objects.create_user("tom", is_superuser=True)
    results = together(lambda: erasure.erase(sam, sam), lambda: erasure.erase(tom, tom))
    assert sorted(type(result).__name__ for result in results) == ["ErasureRefused", "NoneType"]
    assert User.objects.filter(is_superuser=True).count() == 1


def test_answers_recorded_at_the_same_moment_hinder_nothing(
    transactional_db: None, site: Callable[..., None], worker: StepWorker
) -> None:
    for number in range(4):
        user = User.objects.create_user(f"u{number}")
        attempts = []
        for _ in range(2):
            send.send_message(user, send.start_conversation(user), "question")
            attempt = worker.claim().start()
            attempt.write("answer")
            attempt.finish()
            attempts.append(attempt)
        calls = [lambda attempt=attempt: record.record(attempt.id) for attempt in attempts]
        results = together(*calls, lambda user=user: erasure.erase(user, user))
        assert results[-1] is None, results
        assert not User.objects.filter(pk=user.pk).exists()
        assert not Generation.objects.exists()


def test_erased_twice_at_once_is_erased_once(alice: User) -> None:
    together(*[lambda: erasure.erase(alice, alice)] * 2)
    assert AuditEntry.objects.filter(action="account.deleted").count() == 1


# -- the other ways


def test_admin_deletes_one_and_many_the_same_way(left: Traces, sam: User, bob: User, redis: redis_py.Redis) -> None:
    words = words_of(left.user)
    client = signed_in(sam)
    page = client.get(f"/admin/accounts/user/{left.user.pk}/delete/")
    assert page.status_code == 200
    assert MARK not in page.content.decode()
    assert client.post(f"/admin/accounts/user/{left.user.pk}/delete/", {"post": "yes"}).status_code == 302
    assert traces.tables_with(*words) == {}
    assert traces.keys_with(redis, *words) == []
    entry = AuditEntry.objects.get(action="account.deleted")
    assert (entry.actor, bool(PSEUDONYM.fullmatch(entry.subject_name))) == (sam, True)
    chosen = {"action": "delete_selected", "_selected_action": [str(bob.pk)], "post": "yes"}
    assert client.post("/admin/accounts/user/", chosen).status_code == 302
    assert list(User.objects.all()) == [sam]
    assert AuditEntry.objects.filter(action="account.deleted", actor=sam).count() == 2
    assert not LogEntry.objects.filter(object_repr="bob").exists()


def test_admin_is_told_why_the_last_administrator_stays(sam: User) -> None:
    client = signed_in(sam)
    address = f"/admin/accounts/user/{sam.pk}/delete/"
    assert "is the last administrator" in client.get(address).content.decode()
    assert "is the last administrator" in client.post(address, {"post": "yes"}).content.decode()
    tom = User.objects.create_user("tom", is_staff=True, is_superuser=True)
    chosen = {"action": "delete_selected", "_selected_action": [str(sam.pk), str(tom.pk)]}
    assert "One of them must stay" in client.post("/admin/accounts/user/", chosen).content.decode()
    client.post("/admin/accounts/user/", {**chosen, "post": "yes"})
    assert User.objects.count() == 2


def test_admin_who_deletes_their_own_account_is_signed_out(sam: User) -> None:
    User.objects.create_user("tom", is_staff=True, is_superuser=True)
    client = signed_in(sam)
    assert client.post(f"/admin/accounts/user/{sam.pk}/delete/", {"post": "yes"}).status_code == 302
    assert not User.objects.filter(pk=sam.pk).exists()
    assert "/login/" in client.get("/admin/")["Location"]


def test_command_erases_and_asks_before(alice: User, sam: User, monkeypatch: pytest.MonkeyPatch) -> None:
    told = io.StringIO()
    with pytest.raises(CommandError, match="no user named 'nobody'"):
        call_command("eraseuser", "nobody", "--yes")
    with pytest.raises(CommandError, match="Nobody is there to be asked"):
        call_command("eraseuser", "alice")
    with pytest.raises(CommandError, match="last administrator"):
        call_command("eraseuser", "sam", "--yes")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda _question: "alic")
    with pytest.raises(CommandError, match="nothing was deleted"):
        call_command("eraseuser", "alice", stdout=told)
    assert User.objects.filter(pk=alice.pk).exists()
    monkeypatch.setattr("builtins.input", lambda _question: "alice")
    call_command("eraseuser", "alice", stdout=told)
    assert "The account 'alice' is gone" in told.getvalue()
    assert not User.objects.filter(pk=alice.pk).exists()
    entry = AuditEntry.objects.get(action="account.deleted")
    assert (entry.actor_name, bool(PSEUDONYM.fullmatch(entry.subject_name))) == ("", True)


def test_keys_of_others_are_not_touched_in_redis(alice: User, bob: User, redis: redis_py.Redis) -> None:
    ApiKey.create(bob)
    for user in (alice, bob):
        redis.set(f"{redis_keys.PREFIX}rate:{user.pk}:1", 1)
        redis.zadd(f"{redis_keys.ROOMS}m:served", {str(user.pk): 1})
        redis.hset(f"{redis_keys.ROOMS}m:running", str(user.pk), 1)
    erasure.erase(alice, alice)
    assert traces.keys_with(redis, str(alice.pk)) == []
    assert len(traces.keys_with(redis, str(bob.pk))) == 3
