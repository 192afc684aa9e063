"""The ledger: each answer is in it once, however it ended, and stays when all else is gone."""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import zoneinfo
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import redis as redis_py
from django.apps import apps
from django.db import connection, transaction
from django.utils import timezone

from chatsite.accounts.models import ApiKey, User
from chatsite.chat import inference, tasks
from chatsite.chat.actions import organize, send, temporary
from chatsite.chat.generation import record, request
from chatsite.chat.models import Conversation, Generation
from chatsite.usage import ledger
from chatsite.usage.models import UsageDay
from inference.messages.generation import ErrorFacts, FinishReason
from tests.web.api_worker import kit
from tests.web.chat_worker import Attempt, StepWorker
from tests.web.test_actions import answer, together

SUMS = ("num_answers", "num_failed", "num_stopped", "prompt_tokens", "cached_tokens", "completion_tokens")


def sums(user: User) -> tuple[int, ...]:
    """Of the user's only row: the six above, then what was charged."""
    row = UsageDay.objects.get(user=user)
    return (*(getattr(row, name) for name in SUMS), row.charged_tokens)


def entry(user: User, **facts: Any) -> ledger.Entry:
    facts = {"ended_at": timezone.now(), "model": "m", "source": "api", "completion_tokens": 5, **facts}
    return ledger.Entry(user_id=user.pk, **facts)


def add(*entries: ledger.Entry) -> None:
    with transaction.atomic():
        for each in entries:
            ledger.add(each)


def test_answers_of_a_day_add_up_and_cached_tokens_cost_nothing(
    alice: User, conversation: Conversation, worker: StepWorker
) -> None:
    for _ in range(3):
        send.send_message(alice, conversation, "hi")
        answer(worker, "yes")
    assert sums(alice) == (3, 0, 0, 33, 12, 21, 3 * (11 - 4 + 7))
    row = UsageDay.objects.get()
    assert (row.day, row.model, row.source, row.api_key) == (timezone.localdate(), "scripted", "chat", None)
    assert row.decode_seconds == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("reason", "counts"),
    [(FinishReason.ERROR, (1, 1, 0)), (FinishReason.CANCELLED, (1, 0, 1))],
    ids=["failed", "stopped"],
)
def test_failed_and_stopped_answers_are_counted_as_such_and_cost_what_they_did(
    alice: User, conversation: Conversation, worker: StepWorker, reason: FinishReason, counts: tuple[int, int, int]
) -> None:
    send.send_message(alice, conversation, "hi")
    error = ErrorFacts(code="x", message="x.") if reason is FinishReason.ERROR else None
    answer(worker, "yes", reason=reason, error=error)
    assert sums(alice) == (*counts, 11, 4, 7, 14)


def test_one_that_ended_without_a_worker_costs_nothing(alice: User, conversation: Conversation) -> None:
    sent = send.send_message(alice, conversation, "hi")
    record.end_without_log(sent.generation.pk, FinishReason.CANCELLED)
    assert sums(alice) == (1, 0, 1, 0, 0, 0, 0)


def test_an_answer_recorded_many_times_at_once_is_entered_once(
    alice: User, conversation: Conversation, worker: StepWorker
) -> None:
    send.send_message(alice, conversation, "hi")
    attempt = worker.claim().start()
    attempt.finish()
    together(*[lambda: record.record(attempt.id)] * 4)
    record.record(attempt.id)
    assert sums(alice) == (1, 0, 0, 11, 4, 7, 14)


def test_temporary_chats_are_charged_and_titles_are_not(
    alice: User, site: Callable[..., None], worker: StepWorker
) -> None:
    site(model_titles=True)
    worker.announce(kit=kit().to_bytes())
    temporary.ask(alice, [], "hi")
    answer(worker, "yes")
    send.send_message(alice, send.start_conversation(alice), "hi")
    answer(worker, "yes")  # and asks for a title
    answer(worker, "A Title")
    rows = UsageDay.objects.values_list("source", "num_answers", "completion_tokens", "charged_tokens")
    assert sorted(rows) == [("chat", 1, 7, 14), ("temporary", 1, 7, 14), ("title", 1, 7, 0)]


def test_the_day_is_that_of_the_end_in_the_sites_zone(
    alice: User, conversation: Conversation, worker: StepWorker, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.TIME_ZONE = "Pacific/Auckland"
    send.send_message(alice, conversation, "hi")
    late = datetime.datetime(2026, 6, 30, 13, 30, tzinfo=datetime.UTC)  # half past one on the first of July there
    monkeypatch.setattr(timezone, "now", lambda: late)
    answer(worker, "yes")
    assert UsageDay.objects.get().day == datetime.date(2026, 7, 1)


def test_what_was_used_outlives_conversations(alice: User, conversation: Conversation, worker: StepWorker) -> None:
    send.send_message(alice, conversation, "hi")
    answer(worker, "yes")
    organize.delete(alice, conversation)
    assert not Generation.objects.exists()
    assert sums(alice) == (1, 0, 0, 11, 4, 7, 14)


# -- deleted while it is being written


@pytest.fixture
def running(alice: User, conversation: Conversation, worker: StepWorker) -> Attempt:
    """An answer that a worker has begun, to a prompt whose tokens are known."""
    worker.announce(kit=kit().to_bytes())
    send.send_message(alice, conversation, "hi")
    return worker.claim().start()


def test_deleting_what_is_being_written_costs_what_was_read_and_written_so_far(
    alice: User, conversation: Conversation, running: Attempt
) -> None:
    prompt_tokens = running.claim.request.prompt_tokens
    assert prompt_tokens > 0
    running.write("one", "two", "three")
    organize.delete(alice, conversation)
    assert sums(alice) == (1, 0, 1, prompt_tokens, 0, 3, prompt_tokens + 3)


def test_deleting_what_only_waits_costs_nothing(alice: User, conversation: Conversation, worker: StepWorker) -> None:
    worker.announce(kit=kit().to_bytes())
    send.send_message(alice, conversation, "hi")
    organize.delete(alice, conversation)
    assert sums(alice) == (1, 0, 1, 0, 0, 0, 0)


def test_deleting_what_has_ended_but_is_not_recorded_costs_what_the_worker_says(
    alice: User, conversation: Conversation, running: Attempt
) -> None:
    running.finish()
    organize.delete(alice, conversation)
    assert sums(alice) == (1, 0, 1, 11, 4, 7, 14)
    assert not record.record(running.id)
    assert sums(alice) == (1, 0, 1, 11, 4, 7, 14)


def test_deleting_while_redis_is_away_costs_all_that_was_reserved(
    alice: User, conversation: Conversation, running: Attempt, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserved = Generation.objects.get().reserved_tokens
    assert reserved > 4096
    away = request.InferenceClient(dataclasses.replace(settings.INFERENCE, redis_url="redis://127.0.0.1:1/0"))
    monkeypatch.setattr(inference, "inference_client", lambda: away)
    organize.delete(alice, conversation)
    assert UsageDay.objects.get().charged_tokens == reserved


def test_an_answer_that_ends_while_it_is_deleted_is_entered_once(
    alice: User, conversation: Conversation, worker: StepWorker
) -> None:
    """The deletion was read before the end, and then waited for it: it must not enter what has ended meanwhile."""
    for number in range(1, 4):
        target = send.start_conversation(alice)
        send.send_message(alice, target, "hi")
        attempt = worker.claim().start()
        attempt.finish()
        results = together(partial(record.record, attempt.id), partial(organize.delete, alice, target))
        assert not [result for result in results if isinstance(result, Exception)], results
        row = UsageDay.objects.get()
        assert (row.num_answers, row.charged_tokens) == (number, 14 * number)


def test_with_the_account_everything_goes_also_while_answers_end(
    conversation: Conversation, worker: StepWorker, redis: redis_py.Redis
) -> None:
    for number in range(3):
        leaver = User.objects.create_user(f"leaver{number}")
        for _ in range(2):
            send.send_message(leaver, send.start_conversation(leaver), "hi")
        attempts = [worker.claim().start() for _ in range(2)]
        attempts[0].finish()
        results = together(partial(record.record, attempts[0].id), leaver.delete)
        assert not [result for result in results if isinstance(result, Exception)], results
    assert not UsageDay.objects.exists()


# -- keys, and what was there before


def test_rows_of_a_deleted_key_join_those_without_one(alice: User) -> None:
    first, second = (ApiKey.create(alice, name)[0] for name in ("first", "second"))
    add(entry(alice), entry(alice, api_key_id=first.pk), entry(alice, api_key_id=second.pk))
    assert UsageDay.objects.count() == 3
    first.delete()
    ApiKey.objects.all().delete()
    assert sums(alice) == (3, 0, 0, 0, 0, 15, 15)


def test_parallel_entries_of_one_day_lose_nothing(alice: User) -> None:
    results = together(*[lambda: add(*[entry(alice)] * 5)] * 6)
    assert results == [None] * 6
    assert sums(alice) == (30, 0, 0, 0, 0, 150, 150)


def test_what_was_answered_before_there_was_a_ledger_is_entered_by_the_migration(
    alice: User, bob: User, settings: Any
) -> None:
    settings.TIME_ZONE = "Asia/Tokyo"
    evening = datetime.datetime(2026, 5, 1, 22, 0, tzinfo=zoneinfo.ZoneInfo("Asia/Tokyo"))
    key, _secret = ApiKey.create(alice)

    def old(user: User, hours: int, **facts: Any) -> None:
        facts = {
            "model": "m",
            "status": "done",
            "prompt_tokens": 10,
            "cached_tokens": 4,
            "completion_tokens": 2,
            **facts,
        }
        Generation.objects.create(user=user, ended_at=evening + datetime.timedelta(hours=hours), **facts)

    old(alice, 0)
    old(alice, 1, status="failed")
    old(alice, 3, cached_tokens=12)
    old(alice, 0, source="title")
    old(alice, 0, source="api", api_key=key, status="stopped")
    old(bob, 0)
    Generation.objects.create(user=alice, model="m")
    migration = importlib.import_module("chatsite.usage.migrations.0002_ended_answers")
    for _ in range(2):  # a repeat changes nothing
        with connection.schema_editor() as editor:
            migration.fill(apps, editor)
    found = UsageDay.objects.order_by("user__username", "day", "source").values_list(
        "user__username", "day", "source", "api_key", "num_answers", "num_failed", "num_stopped", "charged_tokens"
    )
    first, second = datetime.date(2026, 5, 1), datetime.date(2026, 5, 2)
    assert list(found) == [
        ("alice", first, "api", key.pk, 1, 0, 1, 8),
        ("alice", first, "chat", None, 2, 1, 0, 16),
        ("alice", first, "title", None, 1, 0, 0, 0),
        ("alice", second, "chat", None, 1, 0, 0, 2),
        ("bob", first, "chat", None, 1, 0, 0, 8),
    ]


def test_the_sweeper_enters_what_was_lost(alice: User, conversation: Conversation, running: Attempt) -> None:
    running.finish()
    Generation.objects.update(created_at=timezone.now() - datetime.timedelta(seconds=5))
    tasks.sweep()
    assert sums(alice) == (1, 0, 0, 11, 4, 7, 14)
