"""A person who has left a trace wherever this site keeps one, and where such traces can be found. For tests of what is
downloaded and what is erased.

Everything they wrote has MARK in it, so that it is found in rows that name nobody, too.
"""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import redis as redis_py
from allauth.account.models import EmailAddress
from allauth.mfa.models import Authenticator
from allauth.socialaccount.models import SocialAccount, SocialToken
from allauth.usersessions.models import UserSession
from django.apps import apps
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth.models import Group, Permission
from django.contrib.contenttypes.models import ContentType
from django.core.cache import cache
from django.db import connection, models
from django.test import Client
from django.utils import timezone

from chatsite.accounts import limits
from chatsite.accounts.models import ApiKey, User
from chatsite.audit import log as audit
from chatsite.audit.models import Action
from chatsite.chat.actions import attachments, feedback, organize, queue, retry, send, temporary
from chatsite.chat.generation import record
from chatsite.chat.models import Conversation, Generation, Message
from chatsite.personas.models import Persona
from chatsite.prompts.models import PromptTemplate
from chatsite.review import actions as review
from chatsite.review.models import ReportOutcome
from chatsite.rules.models import UserRules
from chatsite.sharing import actions as sharing
from chatsite.sharing.models import Share
from chatsite.transfer import importing
from tests.web import exports
from tests.web.chat_worker import MODEL, Attempt, StepWorker

NAME, EMAIL, PASSWORD = "zebulon", "zebulon.pike@example.org", "correct horse 7"
MARK = "xyzzy"


@dataclass
class Traces:
    """What a test goes on with."""

    user: User
    link: Share
    secret: str  # of an API key
    browser: Client  # signed in by the form, listed among the sessions
    unlisted: Client  # signed in, and in no list
    running: Attempt
    claimed: set[str]  # ids of all that the worker has, in a temporary chat, too
    waiting: Generation


def leave(other: User, staff: User, worker: StepWorker, redis: redis_py.Redis) -> Traces:
    """Of a new person, beside `other`, who has a report that this person handled, and `staff`, who looked at things.

    Wants the fixture `site`, and the worker to itself.
    """
    user = User.objects.create_user(
        NAME, email=EMAIL, password=PASSWORD, first_name="Zebulon", last_name="Pike", is_staff=True
    )
    talk = _conversation_with_branches(user, worker)
    _of_others(user, other, staff, talk, worker)
    link = sharing.share(user, talk.pk, scope="anyone")
    secret = _account(user, staff)
    browser, unlisted = _sessions(user)
    importing.import_file(user, io.BytesIO(data := json.dumps(exports.chatgpt()).encode()), len(data))
    running, claimed = _under_way(user, worker)
    waiting = send.send_message(user, send.start_conversation(user), f"{MARK} waits").generation
    limits.RequestRate(redis).take(user.pk, 100)
    cache.set(f"allauth:rl:account:reauthenticate:10/m/user:user:{user.pk}", [1.0], 600)
    return Traces(user, link, secret, browser, unlisted, running, claimed, waiting)


def answer(worker: StepWorker, text: str) -> None:
    attempt = worker.claim().start()
    attempt.think(f"{MARK} thought")
    attempt.write(text)
    attempt.finish()
    record.record(attempt.id)


def _conversation_with_branches(user: User, worker: StepWorker) -> Conversation:
    talk = send.start_conversation(user, system_prompt=f"{MARK} instructions")
    file = attachments.add(user, talk, f"{MARK}.txt", f"{MARK} in a file".encode())
    sent = send.send_message(user, talk, f"{MARK} first", attachments=[file.pk])
    answer(worker, f"{MARK} answer")
    retry.retry(user, sent.answer)
    answer(worker, f"{MARK} another answer")
    send.edit(user, sent.message, f"{MARK} asked differently")
    answer(worker, f"{MARK} third answer")
    organize.tag(user, talk, f"{MARK}tag")
    feedback.give(user, sent.answer, -1, reason="wrong", comment=f"{MARK} comment", is_reported=True)
    attachments.add(user, talk, "draft.txt", f"{MARK} draft".encode())
    attachments.add(user, None, "draft.txt", f"{MARK} draft of nothing yet".encode())
    talk.refresh_from_db()
    return talk


def _of_others(user: User, other: User, staff: User, talk: Conversation, worker: StepWorker) -> None:
    """Each looked at the other's; and one handled the other's report."""
    own = send.start_conversation(other)
    sent = send.send_message(other, own, "Of somebody else")
    attempt = worker.claim().start()
    attempt.write("An answer that stays")
    attempt.finish()
    record.record(attempt.id)
    user.user_permissions.add(Permission.objects.get(codename="view_transcript"))
    user = User.objects.get(pk=user.pk)  # its permissions are remembered
    given = feedback.give(other, sent.answer, -1, is_reported=True)
    review.open_transcript(staff, talk.pk, reason=f"{NAME} ({EMAIL}) asked for help", ip="10.0.0.3")
    review.open_transcript(user, own.pk, reason=f"a report that {NAME} handles", ip="10.0.0.1")
    ReportOutcome.objects.create(feedback=given, handled_by=user, note="looked at")
    ReportOutcome.objects.create(
        feedback=Message.objects.get(content=f"{MARK} answer").feedback, handled_by=staff, note=f"{MARK} seen"
    )


def _account(user: User, staff: User) -> str:
    group = Group.objects.create(name="climbers")
    user.groups.add(group)
    UserRules.objects.create(user=user, tokens_per_day=1_000_000)
    EmailAddress.objects.create(user=user, email=EMAIL, verified=True, primary=True)
    Authenticator.objects.create(user=user, type=Authenticator.Type.TOTP, data={"secret": "not to be told"})
    outside = SocialAccount.objects.create(user=user, provider="github", uid="77", extra_data={"login": NAME})
    SocialToken.objects.create(account=outside, token="outside secret")
    Persona.objects.create(owner=user, name="climber", system_prompt=f"{MARK} persona")
    PromptTemplate.objects.create(owner=user, name="climb", title=MARK, text=f"{MARK} prompt")
    key, secret = ApiKey.create(user, f"{MARK} key")
    Generation.objects.create(
        user=user, source="api", model=MODEL, status="done", ended_at=timezone.now(), api_key=key, prompt_tokens=3
    )
    temporary.ask(user, [], f"{MARK} kept nowhere")
    kind = ContentType.objects.get_for_model(User)
    noted = {"content_type": kind, "action_flag": CHANGE, "change_message": "[]"}
    LogEntry.objects.create(user=staff, object_id=str(user.pk), object_repr=NAME, **noted)
    LogEntry.objects.create(user=user, object_id=str(staff.pk), object_repr="sam", **noted)
    audit.record(Action.CHANGED, actor=staff, subject=user, detail={"note": f"of {NAME}"}, ip="10.0.0.3")
    audit.record(Action.GROUP_CHANGED, actor=user, target="climbers", ip="10.0.0.1")
    return secret


def _sessions(user: User) -> tuple[Client, Client]:
    browser, unlisted = Client(), Client()
    typed = {"login": NAME, "password": "wrong"}
    browser.post("/accounts/login/", typed)
    Authenticator.objects.filter(user=user).delete()  # so that the password alone is enough ...
    assert browser.post("/accounts/login/", {**typed, "password": PASSWORD}).status_code == 302
    assert browser.get("/review/mine/").status_code == 200
    Authenticator.objects.create(user=user, type=Authenticator.Type.TOTP, data={"secret": "not to be told"})
    unlisted.force_login(user)
    UserSession.objects.filter(session_key=unlisted.session.session_key).delete()
    return browser, unlisted


def _under_way(user: User, worker: StepWorker) -> tuple[Attempt, set[str]]:
    """An answer that a worker is writing, and a message with a file that waits for its end."""
    talk = send.start_conversation(user)
    send.send_message(user, talk, f"{MARK} runs")
    claimed = {str(worker.claim().id)}
    attempt = worker.claim()
    assert attempt.claim.request.messages[-1].content == f"{MARK} runs"
    attempt.start().write(f"half an answer, {MARK}")
    file = attachments.add(user, talk, "queued.txt", f"{MARK} in the queue".encode())
    queue.say(user, talk, f"{MARK} queued", idempotency_key=uuid.uuid4(), files=[file.pk])
    return attempt, {str(attempt.id), *claimed}


def references() -> Iterator[tuple[type[models.Model], str]]:
    """Every column of every model that names a person."""
    for model in apps.get_models(include_auto_created=True):
        for field in model._meta.get_fields():
            if isinstance(field, models.ForeignKey) and field.related_model is User:
                yield model, field.name


def tables_with(*words: str) -> dict[str, list[str]]:
    """The rows of the whole database whose text has one of the words, by table."""
    found: dict[str, list[str]] = {}
    with connection.cursor() as cursor:
        for table in connection.introspection.table_names(cursor):
            name = connection.ops.quote_name(table)
            likes = " OR ".join(["row::text ILIKE %s"] * len(words))
            cursor.execute(f"SELECT row::text FROM {name} AS row WHERE {likes}", [f"%{word}%" for word in words])
            if rows := [text for (text,) in cursor.fetchall()]:
                found[table] = rows
    return found


def keys_with(redis: redis_py.Redis, *words: str) -> list[str]:
    """Redis keys that have one of the words in their names or anywhere in their values."""
    found = []
    for key in redis.scan_iter():
        told = key.decode(errors="replace") + repr(_value(redis, key))
        if any(word.lower() in told.lower() for word in words):
            found.append(key.decode(errors="replace"))
    return sorted(found)


def _value(redis: redis_py.Redis, key: bytes) -> Any:
    match redis.type(key):
        case b"string":
            return redis.get(key)
        case b"hash":
            return redis.hgetall(key)
        case b"list":
            return redis.lrange(key, 0, -1)
        case b"set":
            return redis.smembers(key)
        case b"zset":
            return redis.zrange(key, 0, -1, withscores=True)
        case b"stream":
            return redis.xrange(key)
        case other:
            raise AssertionError(f"nobody here can read a {other!r}")
