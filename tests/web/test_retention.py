"""What is older than the rules allow goes, by whoever's rule it is; nothing else does."""

from __future__ import annotations

import datetime
import io
import threading
import uuid
from collections.abc import Callable
from typing import Any

import pytest
import redis as redis_py
from allauth.usersessions.models import UserSession
from django.contrib.auth.models import Group
from django.contrib.sessions.models import Session
from django.core.management import CommandError, call_command
from django.db import connection, connections
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from chatsite import advisory_lock
from chatsite.accounts.models import ApiKey, User
from chatsite.audit.models import AuditEntry
from chatsite.celery import app
from chatsite.chat.actions import organize, send
from chatsite.chat.generation import record
from chatsite.chat.models import Conversation, Generation, Message, Tag
from chatsite.privacy import retention, tasks
from chatsite.privacy.retention import Gone
from chatsite.rules import effective
from chatsite.rules.models import GroupRules, SiteRules
from chatsite.sharing import actions as sharing
from chatsite.sharing.models import Share
from tests.web.chat_worker import StepWorker
from tests.web.test_pages import signed_in


def days_ago(days: float) -> datetime.datetime:
    return timezone.now() - datetime.timedelta(days=days)


def talk(owner: User, days: float, **columns: Any) -> Conversation:
    """A conversation whose last message is so old."""
    made = Conversation.objects.create(owner=owner, **columns)
    Message.objects.create(conversation=made, role="user", content="said long ago")
    Conversation.objects.filter(pk=made.pk).update(updated_at=days_ago(days))
    made.refresh_from_db()
    return made


def ended(user: User, days: float, source: str = "api") -> Generation:
    row = Generation.objects.create(user=user, source=source, model="m", status="done", ended_at=days_ago(days))
    Generation.objects.filter(pk=row.pk).update(created_at=days_ago(days))
    return row


def site_says(**rules: Any) -> None:
    SiteRules.objects.update_or_create(id=1, defaults=rules)


def grouped(name: str, days: int | None, *people: User) -> Group:
    group = Group.objects.create(name=name)
    GroupRules.objects.create(group=group, retention_days=days)
    group.user_set.add(*people)
    return group


def left() -> set[uuid.UUID]:
    return set(Conversation.objects.values_list("pk", flat=True))


# -- whose rule it is


@pytest.mark.parametrize(
    ("site", "groups", "days"),
    [
        (None, (), None),
        (30, (), 30),
        (None, (7,), 7),
        (30, (7,), 7),
        (30, (90,), 90),  # a group goes before the site, also where it keeps longer
        (30, (90, 7), 7),
        (30, (None,), 30),
        (None, (None, 14), 14),
    ],
)
def test_conversation_goes_by_the_shortest_of_the_groups_else_by_the_site(
    alice: User, bob: User, redis: redis_py.Redis, site: int | None, groups: tuple[int | None, ...], days: int | None
) -> None:
    site_says(retention_days=site)
    for number, group_days in enumerate(groups):
        grouped(f"g{number}", group_days, alice)
    grouped("of others", 1, bob)
    assert effective.rules_of(alice).retention_days == days
    ages = (0.1, 6.9, 7.1, 29.9, 30.1, 89.9, 90.1)
    talks = {age: talk(alice, age) for age in ages}
    young = talk(bob, 0.9)
    old = talk(bob, 1.1)
    assert retention.due().conversations == 1 + sum(days is not None and age > days for age in ages)
    retention.retain()
    expected = {found.pk for age, found in talks.items() if days is None or age < days}
    assert left() == expected | {young.pk}
    assert not Message.objects.filter(conversation=old).exists()


def test_pinned_archived_and_shared_ones_go_too_with_all_that_hangs_on_them(
    alice: User, site: Callable[..., None], worker: StepWorker, redis: redis_py.Redis
) -> None:
    begun = send.start_conversation(alice)
    send.send_message(alice, begun, "question")
    attempt = worker.claim().start()
    attempt.write("answer")
    attempt.finish()
    record.record(attempt.id)
    organize.tag(alice, begun, "of old")
    link = sharing.share(alice, begun.pk, scope="anyone")
    talk(alice, 10, pinned_at=timezone.now())
    talk(alice, 10, archived_at=timezone.now())
    Conversation.objects.filter(pk=begun.pk).update(updated_at=days_ago(10))
    site_says(retention_days=7)
    assert retention.retain() == Gone(conversations=3)
    assert not Conversation.objects.exists()
    assert not Message.objects.exists()
    assert not Share.objects.filter(pk=link.pk).exists()
    assert not Tag.objects.exists()
    assert alice.usage_days.get().num_answers == 1  # sums stay


def test_conversation_that_is_being_answered_stays_until_it_has_ended(
    alice: User, conversation: Conversation, worker: StepWorker
) -> None:
    send.send_message(alice, conversation, "question")
    named = talk(alice, 10)
    title = Generation.objects.create(user=alice, source="title", model="m", conversation=named)
    Conversation.objects.update(updated_at=days_ago(10))
    site_says(retention_days=7)
    assert retention.retain() == Gone()
    attempt = worker.claim().start()
    attempt.finish()
    record.record(attempt.id)
    Generation.objects.filter(pk=title.pk).update(status="done", ended_at=timezone.now())
    assert retention.retain() == Gone(conversations=2)


def test_conversation_somebody_is_just_writing_in_is_passed_over(alice: User, redis: redis_py.Redis) -> None:
    site_says(retention_days=7)
    held, free = talk(alice, 10), talk(alice, 10)
    is_held, may_go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with connection.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("SELECT 1 FROM chat_conversation WHERE id = %s FOR NO KEY UPDATE", [held.pk])
            is_held.set()
            may_go_on.wait(20)
            cursor.execute("ROLLBACK")
        connections.close_all()

    writer = threading.Thread(target=hold)
    writer.start()
    assert is_held.wait(20)
    try:
        assert retention.retain() == Gone(conversations=1)
    finally:
        may_go_on.set()
        writer.join()
    assert left() == {held.pk} != {free.pk}


# -- the rest


def test_answers_without_a_conversation_go_after_a_month_or_as_soon_as_conversations(
    alice: User, bob: User, redis: redis_py.Redis
) -> None:
    grouped("short", 7, bob)
    ApiKey.create(alice)
    for age in (6, 8, 29, 31):
        ended(alice, age)
        ended(bob, age, "temporary")
    running = Generation.objects.create(user=bob, source="api", model="m")
    Generation.objects.filter(pk=running.pk).update(created_at=days_ago(100))
    assert retention.retain() == Gone(answers=4)
    assert Generation.objects.filter(user=alice).count() == 3
    assert set(Generation.objects.filter(user=bob)) >= {running}
    assert Generation.objects.filter(user=bob).count() == 2
    site_says(retention_days=20)
    assert retention.retain() == Gone(answers=1)


def test_links_go_a_month_after_their_end(alice: User, redis: redis_py.Redis) -> None:
    ends: dict[str, dict[str, Any]] = {
        "stands": {},
        "ended lately": {"expires_at": days_ago(29)},
        "revoked lately": {"revoked_at": days_ago(29)},
        "ended": {"expires_at": days_ago(31)},
        "revoked": {"revoked_at": days_ago(31), "expires_at": timezone.now()},
    }
    for title, columns in ends.items():
        Share.objects.create(
            owner=alice,
            conversation=talk(alice, 1),
            scope="me",
            title=title,
            snapshot={"version": 1, "turns": []},
            updated_at=days_ago(60),
            **columns,
        )
    assert retention.retain() == Gone(links=2)
    assert set(Share.objects.values_list("title", flat=True)) == {"stands", "ended lately", "revoked lately"}


def test_ended_sessions_go_with_what_the_list_says_of_them_and_nobody_notes_it(
    alice: User, redis: redis_py.Redis
) -> None:
    stands, gone = signed_in(alice), signed_in(alice)
    for client in (stands, gone):
        key = client.session.session_key
        UserSession.objects.get_or_create(session_key=key, defaults={"user": alice, "ip": "10.0.0.1"})
    UserSession.objects.update(last_seen_at=days_ago(2))
    Session.objects.filter(pk=gone.session.session_key).update(expire_date=days_ago(1))
    before = AuditEntry.objects.count()
    assert retention.retain() == Gone(sessions=1)
    assert UserSession.objects.get().session_key == stands.session.session_key
    assert stands.get("/").status_code == 200
    assert AuditEntry.objects.count() == before


def test_audit_entries_go_by_the_sites_rule_alone(alice: User, redis: redis_py.Redis) -> None:
    now = AuditEntry.objects.count()
    entries = [AuditEntry(action="account.changed", actor_name="x") for _ in range(3)]
    AuditEntry.objects.bulk_create(entries)
    with connection.cursor() as cursor:  # as no one can later on
        cursor.execute("ALTER TABLE audit_auditentry DISABLE TRIGGER USER")
        AuditEntry.objects.filter(pk__in=[entry.pk for entry in entries]).update(at=days_ago(100))
        cursor.execute("ALTER TABLE audit_auditentry ENABLE TRIGGER USER")
    assert retention.retain() == Gone()
    site_says(audit_days=120)
    now = AuditEntry.objects.count()
    assert retention.retain() == Gone()
    site_says(audit_days=95)
    assert retention.due().audit_entries == 3
    assert retention.retain() == Gone(audit_entries=3)
    assert AuditEntry.objects.filter(at__lt=days_ago(95)).count() == 0
    assert AuditEntry.objects.count() >= now - 3


# -- how it is done


def test_run_is_bounded_takes_the_oldest_first_and_the_next_goes_on(
    alice: User, redis: redis_py.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "BATCH_ROWS", 2)
    monkeypatch.setattr(retention, "MAX_CONVERSATIONS", 4)
    site_says(retention_days=7)
    talks = [talk(alice, 10 + number) for number in range(5)]
    assert retention.retain() == Gone(conversations=4)
    assert left() == {talks[0].pk}
    assert retention.retain() == Gone(conversations=1)
    assert retention.retain() == Gone()


def test_number_of_queries_does_not_grow_with_people(
    alice: User, redis: redis_py.Redis, django_user_model: Any
) -> None:
    site_says(retention_days=7)

    def num_queries(people: int) -> int:
        for user in [django_user_model.objects.create_user(f"p{people}-{number}") for number in range(people)]:
            talk(user, 10)
        with CaptureQueriesContext(
            connection,
        ) as captured:
            assert retention.retain() == Gone(conversations=people)
        return len(captured)

    assert num_queries(2) == num_queries(20)


def test_two_runs_at_once_are_one(alice: User, redis: redis_py.Redis) -> None:
    site_says(retention_days=7)
    talk(alice, 10)
    taken, released = threading.Event(), threading.Event()

    def hold() -> None:
        with advisory_lock.held(advisory_lock.RETENTION) as is_held:
            assert is_held
            taken.set()
            released.wait(20)
        connections.close_all()

    other = threading.Thread(target=hold)
    other.start()
    assert taken.wait(20)
    try:
        assert retention.retain() is None
        with pytest.raises(CommandError, match="Another process"):
            call_command("retain")
        assert Conversation.objects.exists()
    finally:
        released.set()
        other.join()
    tasks.retain()
    assert not Conversation.objects.exists()


def test_one_entry_says_how_many_went_and_no_more(alice: User, redis: redis_py.Redis) -> None:
    site_says(retention_days=7)
    before = AuditEntry.objects.count()
    talk(alice, 10, title="secret title")
    ended(alice, 40)
    tasks.retain()
    tasks.retain()
    entry = AuditEntry.objects.get(action="retention.deleted")
    assert AuditEntry.objects.count() == before + 1
    assert entry.detail == {"conversations": 1, "answers": 1, "links": 0, "sessions": 0, "audit_entries": 0}
    assert (entry.actor, entry.subject, entry.target) == (None, None, "")


def test_what_went_before_a_failure_is_on_record(
    alice: User, redis: redis_py.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    site_says(retention_days=7)
    talk(alice, 10)

    def fail() -> int:
        raise RuntimeError("sessions cannot be read")

    monkeypatch.setattr(retention, "_delete_ended_sessions", fail)
    with pytest.raises(RuntimeError):
        retention.retain()
    assert AuditEntry.objects.get(action="retention.deleted").detail["conversations"] == 1
    with advisory_lock.held(advisory_lock.RETENTION) as is_held:
        assert is_held  # let go of


def test_beat_asks_for_it_every_hour() -> None:
    entry = app.conf.beat_schedule["retention"]
    assert (entry["task"], entry["schedule"]) == ("privacy.retain", 3_600.0)
    app.loader.import_default_modules()
    assert "privacy.retain" in app.tasks


def test_command_says_what_would_go_and_then_deletes_it(alice: User, redis: redis_py.Redis) -> None:
    site_says(retention_days=7)
    talk(alice, 10)
    ended(alice, 40)

    def told(*options: str) -> list[str]:
        out = io.StringIO()
        call_command("retain", *options, stdout=out)
        return [" ".join(line.split()) for line in out.getvalue().splitlines()]

    would = told("--dry-run")
    assert would[0] == "Would be deleted:"
    assert {"1 conversations", "1 records of answers without a conversation", "0 audit entries"} <= set(would)
    assert Conversation.objects.exists()
    assert told() == ["Deleted:", *would[1:]]
    assert not Conversation.objects.exists()
    assert "0 conversations" in told("--dry-run")
