"""What a send accepts it keeps, once; what it refuses leaves no trace."""

from __future__ import annotations

import dataclasses
import threading
import uuid
from collections.abc import Callable
from typing import Any

import pytest
import redis as redis_py
from django.db import connections
from django.http import Http404

from chatsite.accounts.models import User
from chatsite.chat import errors, inference, tasks
from chatsite.chat.actions import organize, retry, send, tree
from chatsite.chat.generation import record
from chatsite.chat.generation import request as generation_request
from chatsite.chat.models import Conversation, Generation, Message
from chatsite.chat.queries import access
from inference.coordination import redis_keys
from inference.messages.generation import FinishReason, Role, SamplingParams
from tests.web.api_worker import kit
from tests.web.chat_worker import MODEL, StepWorker


def answer(worker: StepWorker, *pieces: str, reason: FinishReason = FinishReason.STOP, **more: Any) -> None:
    """The next waiting generation, answered and recorded."""
    attempt = worker.claim().start()
    attempt.write(*pieces)
    attempt.finish(reason, **more)
    record.record(attempt.id)


def together(*calls: Callable[[], Any]) -> list[Any]:
    """Results or exceptions of calls that start at the same moment, each in a thread of its own."""
    barrier = threading.Barrier(len(calls))
    results: list[Any] = [None] * len(calls)

    def run(index: int) -> None:
        barrier.wait()
        try:
            results[index] = calls[index]()
        except Exception as error:  # noqa: BLE001  what went wrong is what the test looks at
            results[index] = error
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_send_makes_message_answer_and_a_request_that_waits(
    alice: User, conversation: Conversation, worker: StepWorker
) -> None:
    sent = send.send_message(alice, conversation, "Why is\r\nthe sky blue?")
    conversation.refresh_from_db()
    assert sent.message.content == "Why is\nthe sky blue?"
    assert (sent.answer.parent, sent.answer.content, conversation.leaf) == (sent.message, "", sent.answer)
    assert conversation.title == "Why is the sky blue?"
    assert sent.generation.is_active
    request = worker.claim().claim.request
    assert request.id == sent.generation.pk
    assert [(m.role, m.content) for m in request.messages] == [(Role.USER, "Why is\nthe sky blue?")]
    assert (request.model, request.user_key, request.conversation_key) == (MODEL, str(alice.pk), str(conversation.pk))
    assert request.date == conversation.prompt_date.isoformat()
    assert generation_request.frozen_request_of(sent.generation) == request


def test_text_postgres_cannot_hold_is_cleaned(alice: User, conversation: Conversation) -> None:
    sent = send.send_message(alice, conversation, "a\x00b \ud83d c")
    assert Message.objects.get(pk=sent.message.pk).content == "ab \ufffd c"


@pytest.mark.parametrize("text", ["", "  \n\t", "\x00"])
def test_empty_text_is_refused(text: str, alice: User, conversation: Conversation) -> None:
    with pytest.raises(errors.EmptyMessage):
        send.send_message(alice, conversation, text)
    assert not Message.objects.exists()


def test_long_text_is_refused_with_both_numbers(alice: User, conversation: Conversation, site: Any) -> None:
    site(max_message_chars=10)
    with pytest.raises(errors.MessageTooLong) as refused:
        send.send_message(alice, conversation, "x" * 11)
    assert refused.value.facts == {"num_chars": 11, "max_chars": 10}
    assert not Message.objects.exists()


def test_prompt_beyond_the_context_is_refused_before_it_waits(
    alice: User, conversation: Conversation, worker: StepWorker
) -> None:
    worker.announce(kit=kit().to_bytes(), context_tokens=400)
    with pytest.raises(errors.PromptTooLong) as refused:
        send.send_message(alice, conversation, "x" * 1000)
    assert refused.value.facts["prompt_tokens"] > 1000 > refused.value.facts["limit_tokens"]  # type: ignore[operator]
    assert not Generation.objects.exists()
    sent = send.send_message(alice, conversation, "x")
    assert 1 < generation_request.frozen_request_of(sent.generation).prompt_tokens < 100


def test_value_out_of_range_is_refused(alice: User, conversation: Conversation) -> None:
    with pytest.raises(errors.InvalidSettings):
        send.send_message(alice, conversation, "hi", sampling=SamplingParams(temperature=9.0))


def test_completion_is_capped_by_the_site(alice: User, conversation: Conversation, site: Any) -> None:
    site(max_completion_tokens=50)
    sent = send.send_message(alice, conversation, "hi", sampling=SamplingParams(max_tokens=1000, seed=7))
    sampling = generation_request.frozen_request_of(sent.generation).sampling
    assert (sampling.max_tokens, sampling.seed) == (50, 7)


def test_model_that_nobody_serves_is_refused_and_the_sites_own_is_not(
    alice: User, worker: StepWorker, site: Any
) -> None:
    with pytest.raises(errors.ModelUnknown):
        send.start_conversation(alice, model="other")
    assert send.start_conversation(alice, model=MODEL).model == MODEL
    site(default_model="")
    with pytest.raises(errors.ModelUnknown):
        send.send_message(alice, send.start_conversation(alice), "hi")
    worker.announce(kit=kit().to_bytes())
    assert send.send_message(alice, send.start_conversation(alice), "hi").generation.model == MODEL


def test_message_waits_for_the_model_that_answered_before_while_no_worker_is_there(
    alice: User, worker: StepWorker, site: Any, redis: redis_py.Redis
) -> None:
    site(default_model="")
    worker.announce(kit=kit().to_bytes())
    send.send_message(alice, send.start_conversation(alice), "hi")
    redis.flushall()
    assert send.send_message(alice, send.start_conversation(alice), "there?").generation.model == MODEL
    assert send.start_conversation(alice, model=MODEL).model == MODEL
    with pytest.raises(errors.ModelUnknown):
        send.start_conversation(alice, model="other")


def test_same_press_of_send_five_times_at_once_is_one_message(
    alice: User, conversation: Conversation, redis: redis_py.Redis
) -> None:
    key = uuid.uuid4()
    results = together(*[lambda: send.send_message(alice, conversation, "once", idempotency_key=key) for _ in range(5)])
    assert {result.generation.pk for result in results} == {Generation.objects.get().pk}
    assert sorted(result.is_repeat for result in results) == [False, True, True, True, True]
    assert Message.objects.filter(role="user").count() == 1
    assert redis.zcard(redis_keys.order(MODEL)) == 1


def test_repeat_after_the_end_returns_what_was_made(
    alice: User, conversation: Conversation, worker: StepWorker
) -> None:
    key = uuid.uuid4()
    sent = send.send_message(alice, conversation, "once", idempotency_key=key)
    answer(worker, "yes")
    repeat = send.send_message(alice, conversation, "once", idempotency_key=key)
    assert repeat.is_repeat
    assert repeat.generation == sent.generation


def test_same_key_in_another_conversation_is_another_message(alice: User, conversation: Conversation) -> None:
    key = uuid.uuid4()
    send.send_message(alice, conversation, "one", idempotency_key=key)
    other = send.send_message(alice, send.start_conversation(alice), "two", idempotency_key=key)
    assert not other.is_repeat


def test_two_different_sends_at_once_are_one_answer_and_one_refusal(alice: User, conversation: Conversation) -> None:
    results = together(
        lambda: send.send_message(alice, conversation, "one"),
        lambda: send.send_message(alice, conversation, "two"),
    )
    assert sorted(type(result).__name__ for result in results) == ["AnswerRunning", "Sent"]
    assert Generation.objects.count() == 1


def test_user_has_so_many_answers_under_way_and_no_more_also_at_once(alice: User, site: Any) -> None:
    site(max_active_per_user=2)
    conversations = [send.start_conversation(alice) for _ in range(4)]
    results = together(*[lambda c=c: send.send_message(alice, c, "hi") for c in conversations])
    assert sorted(type(result).__name__ for result in results) == ["Sent", "Sent", "TooManyActive", "TooManyActive"]
    assert Generation.objects.count() == 2


def test_full_waiting_room_and_full_conversation_refuse(
    alice: User, conversation: Conversation, worker: StepWorker, site: Any
) -> None:
    site(max_conversation_messages=2)
    send.send_message(alice, conversation, "one")
    answer(worker, "yes")
    with pytest.raises(errors.ConversationFull):
        send.send_message(alice, conversation, "two")
    site(max_waiting=1)
    send.send_message(alice, send.start_conversation(alice), "one")
    with pytest.raises(errors.SiteBusy) as refused:
        send.send_message(alice, send.start_conversation(alice), "two")
    assert refused.value.http_status == 503


def test_requests_per_minute_are_refused_with_the_time_to_wait(
    alice: User, conversation: Conversation, worker: StepWorker, site: Any
) -> None:
    site(max_requests_per_minute=1)
    key = uuid.uuid4()
    send.send_message(alice, conversation, "one", idempotency_key=key)
    assert send.send_message(alice, conversation, "one", idempotency_key=key).is_repeat  # repeats are free
    with pytest.raises(errors.TooManyRequests) as refused:
        send.send_message(alice, send.start_conversation(alice), "two")
    assert 1 <= refused.value.retry_after_seconds <= 60


def test_prompt_leaves_out_failed_and_empty_answers_and_reasoning_and_keeps_stopped_text(
    alice: User, conversation: Conversation, worker: StepWorker
) -> None:
    conversation.system_prompt = "Be brief."
    conversation.save()
    send.send_message(alice, conversation, "first")
    attempt = worker.claim()
    attempt.think("hidden thought")
    attempt.write("partial")
    attempt.finish(FinishReason.CANCELLED)
    record.record(attempt.id)
    send.send_message(alice, conversation, "second")
    answer(worker, "broken", reason=FinishReason.ERROR)
    send.send_message(alice, conversation, "third")
    answer(worker)
    sent = send.send_message(alice, conversation, "fourth")
    turns = generation_request.frozen_request_of(sent.generation).messages
    assert [(m.role.value, m.content) for m in turns] == [
        ("system", "Be brief."),
        ("user", "first"),
        ("assistant", "partial"),
        ("user", "second"),
        ("user", "third"),
        ("user", "fourth"),
    ]


def test_retry_is_a_sibling_with_the_same_question(alice: User, conversation: Conversation, worker: StepWorker) -> None:
    sent = send.send_message(alice, conversation, "question")
    with pytest.raises(errors.AnswerRunning):
        retry.retry(alice, sent.answer)
    answer(worker, "old")
    again = retry.retry(alice, sent.answer)
    conversation.refresh_from_db()
    assert (again.message, again.answer.parent, conversation.leaf) == (sent.message, sent.message, again.answer)
    assert [m.content for m in generation_request.frozen_request_of(again.generation).messages] == ["question"]
    assert Message.objects.get(pk=sent.answer.pk).content == "old"
    with pytest.raises(errors.NotAnAnswer):
        retry.retry(alice, sent.message)


def test_retry_pressed_twice_at_once_is_one_answer(alice: User, conversation: Conversation, worker: StepWorker) -> None:
    sent = send.send_message(alice, conversation, "question")
    answer(worker, "old")
    results = together(*[lambda: retry.retry(alice, sent.answer)] * 2)
    assert sorted(type(result).__name__ for result in results) == ["AnswerRunning", "Sent"]


def test_edit_is_a_branch_and_select_goes_back(alice: User, conversation: Conversation, worker: StepWorker) -> None:
    sent = send.send_message(alice, conversation, "question")
    answer(worker, "old")
    edited = send.edit(alice, sent.message, "better question")
    conversation.refresh_from_db()
    assert edited.message.parent is None
    assert access.path_of(conversation) == [edited.message, edited.answer]
    answer(worker, "new")
    shown = tree.select(alice, sent.message)
    assert access.path_of(shown) == [sent.message, sent.answer]


@pytest.mark.parametrize("verb", ["send", "retry", "edit", "select", "rename", "delete", "stop"])
def test_strangers_change_nothing(
    verb: str, alice: User, bob: User, conversation: Conversation, worker: StepWorker
) -> None:
    sent = send.send_message(alice, conversation, "question")
    if verb == "stop":
        send.stop(bob, sent.generation)
        sent.generation.refresh_from_db()
        assert not sent.generation.stop_requested
        return
    answer(worker, "old")
    attempts = {
        "send": lambda: send.send_message(bob, conversation, "mine"),
        "retry": lambda: retry.retry(bob, sent.answer),
        "edit": lambda: send.edit(bob, sent.message, "mine"),
        "select": lambda: tree.select(bob, sent.answer),
        "rename": lambda: organize.rename(bob, conversation, "mine"),
        "delete": lambda: organize.delete(bob, conversation),
    }
    with pytest.raises(Http404):
        attempts[verb]()
    assert Message.objects.count() == 2


def test_stop_of_a_waiting_one_ends_it_at_once(alice: User, conversation: Conversation, redis: redis_py.Redis) -> None:
    sent = send.send_message(alice, conversation, "question")
    send.stop(alice, sent.generation)
    assert record.record(sent.generation.pk)
    sent.generation.refresh_from_db()
    assert (sent.generation.status, sent.generation.stop_requested) == ("stopped", True)
    assert redis.zcard(redis_keys.order(MODEL)) == 0


def test_own_title_stays_and_an_empty_one_gives_the_first_words_back(alice: User, conversation: Conversation) -> None:
    send.send_message(alice, conversation, "first words")
    assert organize.rename(alice, conversation, " My\n title ").title == "My title"
    assert organize.rename(alice, conversation, "").title == "first words"


def test_deletion_reaches_redis_and_refuses_the_worker(
    alice: User, conversation: Conversation, worker: StepWorker, redis: redis_py.Redis
) -> None:
    sent = send.send_message(alice, conversation, "question")
    attempt = worker.claim().start()
    organize.delete(alice, conversation)
    assert not Generation.objects.filter(pk=sent.generation.pk).exists()
    assert not redis.exists(redis_keys.log(sent.generation.pk), redis_keys.generation(sent.generation.pk))
    with pytest.raises(AssertionError):
        attempt.write("more")


def test_deletion_of_the_account_reaches_redis_too(
    alice: User, conversation: Conversation, redis: redis_py.Redis
) -> None:
    sent = send.send_message(alice, conversation, "question")
    alice.delete()
    assert not redis.exists(redis_keys.log(sent.generation.pk), redis_keys.generation(sent.generation.pk))
    assert not record.record(sent.generation.pk)


def test_send_while_redis_is_away_is_kept_and_entered_by_the_sweeper(
    alice: User, conversation: Conversation, worker: StepWorker, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = dataclasses.replace(settings.INFERENCE, redis_url="redis://127.0.0.1:1/0")
    with monkeypatch.context() as while_away:
        client = generation_request.InferenceClient(away)
        while_away.setattr(inference, "inference_client", lambda: client)
        sent = send.send_message(alice, conversation, "kept")
        send.stop(alice, sent.generation)  # nor does a stop fail
        Generation.objects.filter(pk=sent.generation.pk).update(stop_requested=False)
        tasks.sweep()
        client.close()
    assert sent.generation.is_active
    tasks._sweep_active(sent.generation.pk)
    assert worker.claim().id == sent.generation.pk
