"""Messages typed while an answer is being written: each is sent once, in its turn, and none is lost or hangs."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.http import Http404
from django.utils import timezone

from chatsite.accounts.models import User
from chatsite.chat import errors, tasks
from chatsite.chat.actions import answer, queue, send
from chatsite.chat.models import Conversation, Generation, Message, QueuedMessage
from inference.messages.generation import FinishReason
from tests.web.api_worker import kit
from tests.web.chat_worker import Attempt, StepWorker
from tests.web.test_actions import together
from tests.web.test_pages import HX, signed_in


@pytest.fixture
def running(alice: User, conversation: Conversation, worker: StepWorker) -> Attempt:
    """An answer that is being written, to "one"."""
    send.send_message(alice, conversation, "one")
    return worker.claim().start()


def end(attempt: Attempt, reason: FinishReason = FinishReason.STOP) -> None:
    """As the site worker's task does."""
    attempt.write("yes")
    attempt.finish(reason)
    tasks.record(str(attempt.id))


def questions(conversation: Conversation) -> list[str]:
    return list(conversation.messages.filter(role="user").order_by("pk").values_list("content", flat=True))


def waiting(conversation: Conversation) -> list[str]:
    return list(conversation.queued.values_list("content", flat=True))


def say(user: User, conversation: Conversation, *texts: str) -> list[Any]:
    return [queue.say(user, conversation, text, idempotency_key=uuid.uuid4()) for text in texts]


def test_waiting_messages_are_sent_one_by_one_as_answers_are_done(
    alice: User, conversation: Conversation, running: Attempt, worker: StepWorker
) -> None:
    two, three = say(alice, conversation, "two", "three")
    assert isinstance(two, QueuedMessage)
    assert (questions(conversation), waiting(conversation)) == (["one"], ["two", "three"])
    end(running)
    assert (questions(conversation), waiting(conversation)) == (["one", "two"], ["three"])
    assert Message.objects.get(content="two").idempotency_key == two.idempotency_key
    assert Message.objects.get(content="two").parent == Generation.objects.get(pk=running.id).message
    end(worker.claim().start())
    end(worker.claim().start())
    assert (questions(conversation), waiting(conversation)) == (["one", "two", "three"], [])
    assert three.idempotency_key == Message.objects.get(content="three").idempotency_key


def test_message_is_sent_at_once_where_nothing_is_being_written(alice: User, conversation: Conversation) -> None:
    (sent,) = say(alice, conversation, "one")
    assert isinstance(sent, answer.Sent)


@pytest.mark.parametrize(
    ("reason", "why"), [(FinishReason.CANCELLED, "stopped"), (FinishReason.ERROR, "failed")], ids=["stopped", "failed"]
)
def test_queue_waits_for_a_person_after_a_stopped_or_failed_answer(
    alice: User, conversation: Conversation, running: Attempt, reason: FinishReason, why: str, worker: StepWorker
) -> None:
    two, _three = say(alice, conversation, "two", "three")
    end(running, reason)
    tasks.sweep()
    assert waiting(conversation) == ["two", "three"]
    conversation.refresh_from_db()
    assert why in queue.queue_of(conversation).why
    queue.send_now(alice, conversation, two.pk)
    assert questions(conversation) == ["one", "two"]
    end(worker.claim().start())
    assert questions(conversation) == ["one", "two", "three"]


def test_message_typed_while_the_queue_waits_for_a_person_goes_at_once(
    alice: User, conversation: Conversation, running: Attempt, worker: StepWorker
) -> None:
    say(alice, conversation, "two")
    end(running, FinishReason.CANCELLED)
    (sent,) = say(alice, conversation, "instead")
    assert isinstance(sent, answer.Sent)
    end(worker.claim().start())
    assert questions(conversation) == ["one", "instead", "two"]


def test_send_now_stops_the_answer_and_goes_before_the_others(
    alice: User, conversation: Conversation, running: Attempt
) -> None:
    _two, three = say(alice, conversation, "two", "three")
    queue.send_now(alice, conversation, three.pk)
    assert Generation.objects.get(pk=running.id).stop_requested
    assert questions(conversation) == ["one"]
    end(running, FinishReason.CANCELLED)
    assert (questions(conversation), waiting(conversation)) == (["one", "three"], ["two"])


def test_lost_task_is_made_up_for_by_the_sweeper(alice: User, conversation: Conversation, running: Attempt) -> None:
    say(alice, conversation, "two")
    running.finish()
    assert queue.due() == []
    Generation.objects.update(status="done", ended_at=timezone.now())
    assert queue.due() == [conversation.pk]
    tasks.sweep()
    assert questions(conversation) == ["one", "two"]


def test_advance_at_once_from_everywhere_sends_once(alice: User, conversation: Conversation, running: Attempt) -> None:
    say(alice, conversation, "two", "three")
    Generation.objects.update(status="done", ended_at=timezone.now())
    assert together(*[lambda: queue.advance(conversation.pk)] * 4) == [None] * 4
    assert (questions(conversation), waiting(conversation)) == (["one", "two"], ["three"])


def test_press_of_send_is_a_message_or_an_entry_and_never_both(
    alice: User, conversation: Conversation, running: Attempt
) -> None:
    key = uuid.uuid4()
    made = together(*[lambda: queue.say(alice, conversation, "two", idempotency_key=key)] * 5)
    assert {entry.pk for entry in made} == {QueuedMessage.objects.get().pk}
    with pytest.raises(errors.AnswerRunning):
        send.send_message(alice, conversation, "two", idempotency_key=key)
    end(running)
    again = queue.say(alice, conversation, "two", idempotency_key=key)
    assert isinstance(again, answer.Sent)
    assert again.is_repeat
    assert (questions(conversation), waiting(conversation)) == (["one", "two"], [])


def test_key_of_an_entry_makes_no_message_besides(alice: User, conversation: Conversation, running: Attempt) -> None:
    (two,) = say(alice, conversation, "two")
    end(running, FinishReason.CANCELLED)
    with pytest.raises(errors.QueueMoved):
        send.send_message(alice, conversation, "two", idempotency_key=two.idempotency_key)
    assert queue.say(alice, conversation, "two", idempotency_key=two.idempotency_key) == two


def test_entry_can_be_changed_and_removed_until_it_is_sent(
    alice: User, conversation: Conversation, running: Attempt
) -> None:
    two, three = say(alice, conversation, "two", "three")
    queue.edit(alice, conversation, two.pk, "2")
    queue.remove(alice, conversation, three.pk)
    end(running)
    assert (questions(conversation), waiting(conversation)) == (["one", "2"], [])
    for late in (
        lambda: queue.edit(alice, conversation, two.pk, "2.0"),
        lambda: queue.remove(alice, conversation, two.pk),
        lambda: queue.send_now(alice, conversation, two.pk),
    ):
        with pytest.raises(errors.QueueMoved):
            late()
    assert questions(conversation) == ["one", "2"]


def test_full_queue_and_long_or_empty_text_are_refused_before_they_wait(
    alice: User, conversation: Conversation, running: Attempt, worker: StepWorker, site: Callable[..., None]
) -> None:
    worker.announce(kit=kit().to_bytes(), context_tokens=400)
    with pytest.raises(errors.PromptTooLong) as refused:
        say(alice, conversation, "x" * 1000)
    assert refused.value.facts["prompt_tokens"] > 1000 > refused.value.facts["limit_tokens"]  # type: ignore[operator]
    say(alice, conversation, *[str(number) for number in range(queue.MAX_QUEUED)])
    with pytest.raises(errors.QueueFull):
        say(alice, conversation, "more")
    with pytest.raises(errors.EmptyMessage):
        say(alice, conversation, " \n")
    site(max_message_chars=3)
    with pytest.raises(errors.MessageTooLong):
        queue.edit(alice, conversation, conversation.queued.first().pk, "long")  # type: ignore[union-attr]
    assert len(waiting(conversation)) == queue.MAX_QUEUED


def test_refused_message_waits_with_the_reason_and_passing_ones_are_tried_again(
    alice: User, conversation: Conversation, running: Attempt, site: Callable[..., None]
) -> None:
    site(max_active_per_user=1)
    say(alice, conversation, "two")
    other = send.start_conversation(alice)
    Generation.objects.update(status="done", ended_at=timezone.now())
    send.send_message(alice, other, "elsewhere")
    tasks.sweep()
    entry = conversation.queued.get()
    assert "1 is the most" in entry.refusal
    assert entry.try_again_at
    assert queue.queue_of(conversation).why == entry.refusal
    assert queue.due() == []
    Generation.objects.filter(status="active").update(status="done", ended_at=timezone.now())
    QueuedMessage.objects.update(try_again_at=timezone.now())
    tasks.sweep()
    assert questions(conversation) == ["one", "two"]


def test_message_refused_for_good_is_left_to_its_sender(
    alice: User, conversation: Conversation, running: Attempt, site: Callable[..., None]
) -> None:
    (two,) = say(alice, conversation, "two")
    site(max_message_chars=2)
    end(running)
    assert (waiting(conversation), queue.due()) == (["two"], [])
    assert "at most 2 fit" in conversation.queued.get().refusal
    site(max_message_chars=10)
    queue.edit(alice, conversation, two.pk, "shorter")
    tasks.sweep()
    assert questions(conversation) == ["one", "shorter"]


def test_strangers_find_no_queue(bob: User, alice: User, conversation: Conversation, running: Attempt) -> None:
    (two,) = say(alice, conversation, "secret")
    for attempt in (
        lambda: queue.say(bob, conversation, "mine"),
        lambda: queue.edit(bob, conversation, two.pk, "mine"),
        lambda: queue.remove(bob, conversation, two.pk),
        lambda: queue.send_now(bob, conversation, two.pk),
    ):
        with pytest.raises(Http404):
            attempt()
    client = signed_in(bob)
    for name in ("", "remove/", "now/"):
        assert client.post(f"/chat/{conversation.pk}/queue/{two.pk}/{name}", {"text": "x"}).status_code == 404
    assert client.get(f"/chat/{conversation.pk}/news/", headers=HX).status_code == 404
    assert waiting(conversation) == ["secret"]


@pytest.mark.parametrize("headers", [{}, HX], ids=["plain", "htmx"])
def test_page_queues_shows_changes_and_removes(
    alice: User, conversation: Conversation, running: Attempt, headers: dict[str, str]
) -> None:
    client, url = signed_in(alice), f"/chat/{conversation.pk}/"
    sent = client.post(f"{url}send/", {"text": "<b>two</b>", "key": str(uuid.uuid4())}, headers=headers)
    assert sent.status_code == (200 if headers else 302)
    if headers:
        assert sent["HX-Trigger"] == "news:later"
        assert b'id="queue" aria-label="Queue" hx-swap-oob="true"' in sent.content
    entry = conversation.queued.get()
    page = client.get(url).content
    assert b"&lt;b&gt;two&lt;/b&gt;" in page
    assert b"Sent when the answer is done" in page
    where = f"{url}queue/{entry.pk}/"
    assert client.post(where, {"text": ""}, headers=headers).status_code == 400
    client.post(where, {"text": "changed"}, headers=headers)
    assert waiting(conversation) == ["changed"]
    client.post(f"{where}remove/", headers=headers)
    assert waiting(conversation) == []
    assert client.post(f"{where}now/", headers=headers).status_code == 409


def test_news_bring_what_came_after_the_last_message_shown(
    alice: User, conversation: Conversation, running: Attempt
) -> None:
    client, url = signed_in(alice), f"/chat/{conversation.pk}/news/"
    shown = Generation.objects.get(pk=running.id).message
    assert shown
    say(alice, conversation, "two", "three")
    same = client.get(url, {"leaf": str(shown.pk)}, headers=HX)
    assert b"<article" not in same.content
    assert "HX-Trigger" not in same
    end(running)
    news = client.get(url, {"leaf": str(shown.pk)}, headers=HX)
    assert b'<div id="turns" hx-swap-oob="beforeend"><article' in news.content.replace(b">\n<article", b"><article")
    assert not {"HX-Retarget", "HX-Reswap"} & set(news.headers)  # whoever asked may have been drawn anew since
    assert news.content.count(b"<article") == 2
    assert b'hx-swap-oob="true"' in news.content
    assert b"three" in news.content
    elsewhere = client.get(url, {"leaf": str(uuid.uuid4())}, headers=HX)
    assert elsewhere["HX-Retarget"] == "#log"
    assert client.get(url).status_code == 302


def test_deleted_conversation_takes_its_queue_along(alice: User, conversation: Conversation, running: Attempt) -> None:
    say(alice, conversation, "two")
    Conversation.objects.all().delete()
    queue.advance(conversation.pk)
    queue.advance_after(running.id)
    assert not QueuedMessage.objects.exists()


def test_queue_of_a_closed_account_stands_still(alice: User, conversation: Conversation, running: Attempt) -> None:
    say(alice, conversation, "two")
    User.objects.update(is_active=False)
    end(running)
    tasks.sweep()
    assert (waiting(conversation), queue.due()) == (["two"], [])
