"""Every generation ends, once, and in Postgres before anybody is told; the sweeper mends whatever was cut off."""

from __future__ import annotations

import datetime
import threading
import uuid
from typing import Any

import pytest
import redis as redis_py
from django.db import connection, connections
from django.utils import timezone
from structlog.testing import capture_logs

from chatsite import advisory_lock
from chatsite.accounts.models import User, new_id
from chatsite.chat import inference, tasks
from chatsite.chat.actions import answer, send
from chatsite.chat.generation import record as generation_record
from chatsite.chat.generation import request as generation_request
from chatsite.chat.models import Generation, Message
from chatsite.chat.text import sha256_of
from inference.coordination import redis_keys
from inference.messages.generation import ErrorFacts, EventKind, FinishReason
from inference.messages.serialization import encode
from tests.web.chat_worker import MODEL, StepWorker


def age(generation: Generation) -> None:
    """Make the row old enough for the sweeper."""
    Generation.objects.filter(pk=generation.pk).update(created_at=timezone.now() - datetime.timedelta(seconds=5))


def sweep(*generations: Generation) -> None:
    for generation in generations:
        age(generation)
    tasks.sweep()
    for generation in generations:
        generation.refresh_from_db()


def kinds(worker: StepWorker, generation: Generation) -> list[EventKind]:
    return [event.kind for event in worker.log.read(generation.pk).events]


def test_record_brings_text_and_facts_into_postgres_and_then_says_so(sent: answer.Sent, worker: StepWorker) -> None:
    attempt = worker.claim().start()
    attempt.think("hm")
    attempt.write("Hel", "lo 👩‍💻")
    attempt.finish(FinishReason.LENGTH, cut="loop")
    assert EventKind.RECORDED not in kinds(worker, sent.generation)
    tasks.record(str(sent.generation.pk))
    row = Generation.objects.select_related("message").get(pk=sent.generation.pk)
    assert (row.status, row.finish_reason, row.request, row.worker) == ("done", "length", "", worker.name)
    assert row.cut == "loop"
    assert (row.message.content, row.message.reasoning) == ("Hello 👩‍💻", "hm")
    assert (row.prompt_tokens, row.cached_tokens, row.completion_tokens, row.reasoning_tokens) == (11, 4, 7, 3)
    assert row.content_sha256 == sha256_of("Hello 👩‍💻")
    assert row.ended_at is not None
    assert kinds(worker, sent.generation)[-1] is EventKind.RECORDED


def test_record_twice_and_at_once_does_nothing_more(sent: answer.Sent, worker: StepWorker) -> None:
    attempt = worker.claim()
    attempt.write("text")
    attempt.finish()

    def record() -> None:
        tasks.record(str(sent.generation.pk))
        connections.close_all()

    threads = [threading.Thread(target=record) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ended_at = Generation.objects.get().ended_at
    tasks.record(str(sent.generation.pk))
    assert Generation.objects.get().ended_at == ended_at
    assert kinds(worker, sent.generation).count(EventKind.RECORDED) == 1


@pytest.mark.parametrize(
    ("reason", "status"),
    [("stop", "done"), ("length", "done"), ("tool_calls", "done"), ("cancelled", "stopped"), ("error", "failed")],
)
def test_each_reason_has_its_end(reason: str, status: str, sent: answer.Sent, worker: StepWorker) -> None:
    attempt = worker.claim()
    attempt.write("so far")
    error = ErrorFacts(code="bad_logits", message="It broke.", retryable=True) if reason == "error" else None
    attempt.finish(FinishReason(reason), error)
    generation_record.record(attempt.id)
    row = Generation.objects.select_related("message").get()
    assert (row.status, row.finish_reason, row.message.content) == (status, reason, "so far")
    told = ("bad_logits", "It broke.", True) if error else ("", "", False)
    assert (row.error_code, row.error_message, row.is_retryable) == told


def test_stored_text_is_clean_and_its_hash_is_of_the_stored_text(sent: answer.Sent, worker: StepWorker) -> None:
    attempt = worker.claim()
    attempt.write("a\x00b")
    attempt.finish()
    generation_record.record(attempt.id)
    row = Generation.objects.select_related("message").get()
    assert row.message.content == "ab"
    assert row.content_sha256 == sha256_of("ab")


def test_text_that_differs_from_its_finish_is_kept_and_said_without_the_text(
    sent: answer.Sent, worker: StepWorker
) -> None:
    attempt = worker.claim()
    attempt.write("secret words")
    attempt.text = "other"
    attempt.finish()
    with capture_logs() as logs:
        generation_record.record(attempt.id)
    assert [entry["log_level"] for entry in logs].count("error") == 1
    assert "secret" not in str(logs)
    assert Message.objects.get(pk=sent.answer.pk).content == "secret words"


def test_record_of_unfinished_unknown_or_deleted_does_nothing(
    sent: answer.Sent, worker: StepWorker, redis: redis_py.Redis
) -> None:
    attempt = worker.claim()
    assert not generation_record.record(attempt.id)
    assert not generation_record.record(uuid.uuid4())
    attempt.write("text")
    attempt.finish()
    Generation.objects.all()._raw_delete("default")  # type: ignore[attr-defined]  # as by another process
    assert not generation_record.record(attempt.id)
    assert not redis.exists(redis_keys.log(attempt.id))


def test_api_generation_stores_usage_and_no_text(alice: User, worker: StepWorker, site: Any) -> None:
    conversation = send.start_conversation(alice)
    request = generation_request.request_for(new_id(), conversation, (), model=MODEL, sampling=answer.MODEL_SAMPLING)
    Generation.objects.create(pk=request.id, user=alice, source="api", model=MODEL, request=encode(request).decode())
    inference.submit(request)
    attempt = worker.claim()
    attempt.write("answer")
    attempt.finish()
    generation_record.record(attempt.id)
    row = Generation.objects.get()
    assert (row.status, row.completion_tokens, row.request) == ("done", 7, "")
    assert not Message.objects.exists()


def test_sweep_records_a_finish_whose_message_was_lost(sent: answer.Sent, worker: StepWorker) -> None:
    attempt = worker.claim()
    attempt.write("text")
    attempt.finish()
    sweep(sent.generation)
    assert sent.generation.status == "done"
    assert kinds(worker, sent.generation)[-1] is EventKind.RECORDED


def test_sweep_enters_afresh_what_redis_lost(sent: answer.Sent, worker: StepWorker, redis: redis_py.Redis) -> None:
    worker.claim().write("half")
    redis.flushall()
    sweep(sent.generation)
    attempt = worker.claim()
    assert (attempt.id, attempt.text) == (sent.generation.pk, "")


def test_sweep_stops_what_redis_lost_and_the_user_stopped(
    sent: answer.Sent, alice: User, redis: redis_py.Redis
) -> None:
    redis.flushall()
    send.stop(alice, sent.generation)
    sweep(sent.generation)
    assert (sent.generation.status, sent.generation.finish_reason) == ("stopped", "cancelled")
    assert not redis.exists(redis_keys.generation(sent.generation.pk))


def test_sweep_lets_another_worker_go_on_and_fails_it_after_three(sent: answer.Sent, worker: StepWorker) -> None:
    for attempt_number in range(3):
        attempt = worker.claim()
        attempt.write(f"{attempt_number} ")
        worker.leases.lapse(attempt.id, force=True)
        sweep(sent.generation)
    assert (sent.generation.status, sent.generation.error_code, sent.generation.is_retryable) == (
        "failed",
        "worker_lost",
        True,
    )
    assert Message.objects.get(pk=sent.answer.pk).content == "0 1 2 "


def test_sweep_ends_a_stopped_one_that_waits_and_flags_one_that_is_written(
    alice: User, site: Any, redis: redis_py.Redis, worker: StepWorker
) -> None:
    first, second = (send.send_message(alice, send.start_conversation(alice), "hi") for _ in range(2))
    attempt = worker.claim()
    running, waiting = (first, second) if attempt.id == first.generation.pk else (second, first)
    Generation.objects.update(stop_requested=True)  # the web process died before it told Redis
    sweep(first.generation, second.generation)
    assert waiting.generation.status == "stopped"
    assert running.generation.is_active
    assert worker.room.standing(attempt.id).stop_requested


def test_sweep_leaves_young_rows_alone(sent: answer.Sent, redis: redis_py.Redis) -> None:
    redis.flushall()
    tasks.sweep()
    assert not redis.exists(redis_keys.generation(sent.generation.pk))


def test_sweep_appends_recorded_when_its_writer_died_after_the_commit(sent: answer.Sent, worker: StepWorker) -> None:
    attempt = worker.claim()
    attempt.write("text")
    attempt.finish()
    found = worker.log.read(attempt.id)
    assert found.finish is not None
    generation_record.end_from_log(attempt.id, found, found.finish)
    assert EventKind.RECORDED not in kinds(worker, sent.generation)
    sweep(sent.generation)
    assert kinds(worker, sent.generation)[-1] is EventKind.RECORDED


def test_sweep_ends_the_second_log_of_a_very_late_submit(
    sent: answer.Sent, worker: StepWorker, redis: redis_py.Redis
) -> None:
    request = generation_request.frozen_request_of(sent.generation)
    redis.flushall()
    generation_record.end_without_log(sent.generation.pk, FinishReason.CANCELLED)
    inference.submit(request)
    sweep(sent.generation)
    assert sent.generation.status == "stopped"
    assert kinds(worker, sent.generation) == [EventKind.FINISH, EventKind.RECORDED]
    assert redis.zcard(redis_keys.order(MODEL)) == 0


def test_one_bad_row_blocks_no_other(alice: User, site: Any, redis: redis_py.Redis, worker: StepWorker) -> None:
    rows = [send.send_message(alice, send.start_conversation(alice), "hi").generation for _ in range(3)]
    bad = rows[1]
    Generation.objects.filter(pk=bad.pk).update(request="{}")
    redis.flushall()
    redis.set(redis_keys.generation(rows[0].pk), "not a hash")  # the sweep's script can make nothing of it
    sweep(*rows)
    assert (bad.status, bad.error_code, bad.is_retryable) == ("failed", "request_lost", True)
    assert (rows[0].status, rows[0].error_code) == ("failed", "log_unreadable")
    assert worker.claim().id == rows[2].pk


def test_overlapping_sweeps_leave_it_to_one(sent: answer.Sent, redis: redis_py.Redis) -> None:
    redis.flushall()
    taken, released = threading.Event(), threading.Event()

    def hold() -> None:
        with advisory_lock.held(advisory_lock.SWEEP) as is_alone:
            assert is_alone
            taken.set()
            released.wait(10)
        connections.close_all()

    thread = threading.Thread(target=hold)
    thread.start()
    assert taken.wait(10)
    sweep(sent.generation)
    assert not redis.exists(redis_keys.generation(sent.generation.pk))
    released.set()
    thread.join()
    sweep(sent.generation)
    assert redis.exists(redis_keys.generation(sent.generation.pk))


def test_sweep_lock_is_given_back_also_after_an_error(sent: answer.Sent, redis: redis_py.Redis) -> None:
    with pytest.raises(RuntimeError), advisory_lock.held(advisory_lock.SWEEP):
        raise RuntimeError
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
        assert cursor.fetchone() == (0,)


def test_redis_away_is_said_once_and_ends_the_sweep(
    alice: User, site: Any, redis: redis_py.Redis, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dataclasses

    rows = [send.send_message(alice, send.start_conversation(alice), "hi").generation for _ in range(3)]
    client = generation_request.InferenceClient(
        dataclasses.replace(settings.INFERENCE, redis_url="redis://127.0.0.1:1/0")
    )
    monkeypatch.setattr(inference, "inference_client", lambda: client)
    with capture_logs() as logs:
        sweep(*rows)
    client.close()
    assert [entry["event"] for entry in logs] == ["sweep ended: redis is away"]
    assert all(row.is_active for row in rows)
