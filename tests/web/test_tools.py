"""Tools in a chat: an answer's calls are made once each, their results go to the model, and the answer goes on."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from pydantic_monty import Monty

from chatsite.accounts.models import User
from chatsite.chat import tasks
from chatsite.chat.actions import queue, retry, send, settings, tree
from chatsite.chat.actions import tool_calls as actions_tool_calls
from chatsite.chat.generation import record, request
from chatsite.chat.generation import tool_calls as generation_tool_calls
from chatsite.chat.models import Conversation, Generation, Message, QueuedMessage
from chatsite.chat.queries import access
from chatsite.chat.tools import catalog, python
from chatsite.sharing import snapshots
from chatsite.transfer import reading, records
from inference.messages.generation import FinishReason, Role
from tests.web.api_worker import kit
from tests.web.chat_worker import Attempt, StepWorker
from tests.web.test_pages import HX, signed_in


@pytest.fixture
def conversation(conversation: Conversation, alice: User, worker: StepWorker) -> Conversation:
    """One whose answers may call tools."""
    worker.announce(kit=kit().to_bytes(), context_tokens=400)
    return settings.tune(alice, conversation, tools=True)


def call(attempt: Attempt, *calls: tuple[str, str]) -> None:
    """End an answer with calls, and have the site worker's task run."""
    for index, (name, arguments) in enumerate(calls):
        attempt.call(name, arguments, index=index)
    attempt.finish(FinishReason.TOOL_CALLS)
    tasks.record(str(attempt.id))


def ask(alice: User, conversation: Conversation, worker: StepWorker, text: str = "What is 6 * 7?") -> Attempt:
    send.send_message(alice, conversation, text)
    return worker.claim().start()


def path(conversation: Conversation) -> list[Message]:
    conversation.refresh_from_db()
    return list(conversation.messages.order_by("pk"))


def test_result_goes_to_the_model_and_the_answer_goes_on(
    alice: User, conversation: Conversation, worker: StepWorker
) -> None:
    first = ask(alice, conversation, worker)
    assert {tool.name for tool in first.claim.request.tools} == {"python", "time", "search_chats"}
    first.write("I reckon. ")
    call(first, ("python", '{"code": "print(6 * 7)"}'))
    second = worker.claim().start()
    said = second.claim.request.messages
    assert [m.role for m in said] == [Role.USER, Role.ASSISTANT, Role.TOOL]
    assert (said[1].content, said[1].tool_calls[0].name) == ("I reckon. ", "python")
    assert (said[2].content, said[2].tool_call_id) == ("42", said[1].tool_calls[0].id)
    second.write("It is 42.")
    second.finish()
    tasks.record(str(second.id))
    question, called, answer = path(conversation)
    assert conversation.leaf_id == answer.pk
    assert (called.parent_id, answer.parent_id, answer.content) == (question.pk, called.pk, "It is 42.")
    assert called.calling_since is None
    (kept,) = generation_tool_calls.of(called)
    assert (kept.result, kept.has_failed) == ("42", False)
    third = ask(alice, conversation, worker, "And twice that?")
    assert [m.role for m in third.claim.request.messages] == [
        Role.USER, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT, Role.USER,
    ]  # fmt: skip


def test_without_the_switch_no_tool_is_offered(
    alice: User, conversation: Conversation, worker: StepWorker, site: Callable[..., None]
) -> None:
    settings.tune(alice, conversation, tools=False)
    assert ask(alice, conversation, worker).claim.request.tools == ()
    site(tools=())
    other = send.start_conversation(alice, tools=True)
    assert ask(alice, other, worker).claim.request.tools == ()


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("python", '{"code": "1/0"}', "ZeroDivisionError: division by zero"),
        ("python", '{"code": 7}', "Expected `str`, got `int` - at `$.code`"),
        ("python", "{}", "missing required field `code`"),
        ("python", '{"code": "(("}', "unexpected EOF"),
        ("nosuch", "{}", "There is no tool 'nosuch'."),
        ("time", '{"zone": "Mars/Base"}', "There is no time zone 'Mars/Base'"),
        ("time", '{"zone": "../../etc/passwd"}', "There is no time zone"),
        ("search_chats", '{"query": "..."}', "no word to look for"),
    ],
)
def test_a_bad_call_fails_alone_with_its_reason(
    alice: User, conversation: Conversation, worker: StepWorker, name: str, arguments: str, said: str
) -> None:
    call(ask(alice, conversation, worker), (name, arguments), ("python", '{"code": "2 + 2"}'))
    bad, good = generation_tool_calls.of(path(conversation)[1])
    assert bad.has_failed
    assert said in (bad.result or "")
    assert (good.result, good.has_failed) == ("4", False)
    assert [m.content for m in worker.claim().claim.request.messages[2:]] == [bad.result, "4"]


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "'a' * 10**9",
        "10 ** 10 ** 8",
        "def f(n): return f(n + 1)\nf(0)",
        "open('/etc/passwd').read()",
        "import os\nos.environ['SECRET_KEY']",
        "import os\nos.listdir('/')",
        "import subprocess",
        "import socket",
        "__import__('os').system('id')",
        "[].__class__.__base__.__subclasses__()",
    ],
)
def test_code_can_neither_escape_nor_hold_the_site_up(site: Callable[..., None], alice: User, code: str) -> None:
    site(max_tool_seconds=1)
    python._pool.cache_clear()
    began = time.monotonic()
    result = catalog.answer(alice, "python", json.dumps({"code": code}))
    assert result.has_failed, result
    assert time.monotonic() - began < 10
    python._pool.cache_clear()


def test_a_broken_sandbox_is_replaced(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    with Monty(max_processes=1, request_timeout=0.5) as pool:
        monkeypatch.setattr(python, "_pool", lambda: pool)
        broken = catalog.answer(alice, "python", '{"code": "while True: pass"}')
        assert (broken.has_failed, "sandbox" in broken.text) == (True, True)
        assert catalog.answer(alice, "python", '{"code": "1 + 1"}').text == "2"


def test_a_result_is_cut_where_it_would_fill_the_context(alice: User, site: Callable[..., None]) -> None:
    result = catalog.answer(alice, "python", '{"code": "print(\'ab\' * 100000)"}')
    assert len(result.text) == catalog.MAX_RESULT_CHARS
    assert result.text.endswith(catalog.CUT)


def test_search_finds_ones_own_alone(
    alice: User, bob: User, conversation: Conversation, worker: StepWorker, site: Callable[..., None]
) -> None:
    for user in (alice, bob):
        mine = send.start_conversation(user)
        Message.objects.create(conversation=mine, role="user", content=f"The xyzzy of <b>{user.username}</b>")
    found = catalog.answer(alice, "search_chats", '{"query": "xyzzy"}')
    assert "<b>alice</b>" in found.text.replace("&lt;", "<")
    assert "bob" not in found.text
    assert catalog.answer(alice, "search_chats", '{"query": "plugh"}').text == "Nothing was found."


def test_after_so_many_rounds_the_model_must_answer(
    alice: User, conversation: Conversation, worker: StepWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request, "MAX_ROUNDS", 3)
    attempt = ask(alice, conversation, worker)
    for _ in range(request.MAX_ROUNDS):
        assert attempt.claim.request.tool_choice == "auto"
        call(attempt, ("time", "{}"))
        attempt = worker.claim().start()
    assert attempt.claim.request.tool_choice == "none"


def test_too_many_calls_are_told_so(alice: User, conversation: Conversation, worker: StepWorker) -> None:
    call(ask(alice, conversation, worker), *[("python", '{"code": "1"}')] * (generation_tool_calls.MAX_CALLS + 2))
    kept = generation_tool_calls.of(path(conversation)[1])
    assert [c.has_failed for c in kept] == [False] * generation_tool_calls.MAX_CALLS + [True, True]
    assert kept[-1].result == generation_tool_calls.TOO_MANY


def test_a_lost_task_is_made_up_for_and_a_dead_workers_call_counts_as_failed(
    alice: User, conversation: Conversation, worker: StepWorker
) -> None:
    attempt = ask(alice, conversation, worker)
    attempt.call("python", '{"code": "1"}')
    attempt.finish(FinishReason.TOOL_CALLS)
    assert record.record(attempt.id)  # and then the site worker died
    called = path(conversation)[1]
    assert actions_tool_calls.due() == []  # its own task may just be at it
    before = timezone.now() - datetime.timedelta(seconds=60)
    Message.objects.filter(pk=called.pk).update(calling_since=before)
    assert actions_tool_calls.due() == [called.pk]
    claimed = actions_tool_calls._claimed(called.pk)
    assert claimed is not None
    actions_tool_calls.go_on(called.pk)  # another one comes along: it is not made twice
    assert generation_tool_calls.of(path(conversation)[1])[0].result is None
    kept = path(conversation)[1].calls
    assert kept is not None
    kept[0]["began_at"] -= 3_600
    Message.objects.filter(pk=called.pk).update(calls=kept)
    tasks.call(str(called.pk))
    assert generation_tool_calls.of(path(conversation)[1])[0].result == actions_tool_calls.LOST
    assert worker.claim().claim.request.messages[-1].content == actions_tool_calls.LOST
    actions_tool_calls.go_on(called.pk)
    assert len(path(conversation)) == 3  # going on twice begins one answer


def test_stop_between_two_answers_ends_it_there(
    alice: User, conversation: Conversation, worker: StepWorker, site: Callable[..., None]
) -> None:
    attempt = ask(alice, conversation, worker)
    attempt.call("python", '{"code": "1"}')
    attempt.finish(FinishReason.TOOL_CALLS)
    record.record(attempt.id)
    sent = queue.say(alice, conversation, "next")
    assert isinstance(sent, QueuedMessage)  # it goes on: what is typed meanwhile waits
    with pytest.raises(send.errors.AnswerRunning):
        send.send_message(alice, conversation, "now")
    client = signed_in(alice)
    assert client.post(f"/chat/generations/{attempt.id}/stop/", headers=HX).status_code == 204
    called = path(conversation)[1]
    assert (called.calling_since, generation_tool_calls.of(called)[0].result) == (None, actions_tool_calls.STOPPED)
    tasks.call(str(called.pk))
    assert len(path(conversation)) == 2


def test_a_strangers_stop_changes_nothing(
    alice: User, bob: User, conversation: Conversation, worker: StepWorker
) -> None:
    attempt = ask(alice, conversation, worker)
    attempt.call("python", '{"code": "1"}')
    attempt.finish(FinishReason.TOOL_CALLS)
    record.record(attempt.id)
    actions_tool_calls.stop(bob, Generation.objects.get(pk=attempt.id))
    assert path(conversation)[1].calling_since is not None


def test_refusal_of_the_next_answer_stands_there_with_its_reason_and_retry(
    alice: User, conversation: Conversation, worker: StepWorker, site: Callable[..., None]
) -> None:
    attempt = ask(alice, conversation, worker)
    site(max_active_per_user=1)
    other = send.start_conversation(alice)
    attempt.call("python", '{"code": "1"}')
    attempt.finish(FinishReason.TOOL_CALLS)
    record.record(attempt.id)
    send.send_message(alice, other, "in between")
    actions_tool_calls.go_on_after(attempt.id)
    failed = path(conversation)[-1]
    assert (failed.generation.status, failed.generation.error_code) == ("failed", "too_many_active")
    assert conversation.leaf_id == failed.pk
    site(max_active_per_user=4)
    retry.retry(alice, failed)
    worker.claim()  # the other conversation's
    again = worker.claim().claim.request
    assert [m.role for m in again.messages] == [Role.USER, Role.ASSISTANT, Role.TOOL]


def test_queue_goes_on_only_after_the_last_answer(alice: User, conversation: Conversation, worker: StepWorker) -> None:
    attempt = ask(alice, conversation, worker)
    queue.say(alice, conversation, "next")
    call(attempt, ("time", "{}"))
    assert [m.role for m in path(conversation)].count("user") == 1
    second = worker.claim().start()
    second.write("Late.")
    second.finish()
    tasks.record(str(second.id))
    assert path(conversation)[-2].content == "next"


def test_page_shows_calls_as_they_come_and_goes_on_by_itself(
    alice: User, conversation: Conversation, worker: StepWorker
) -> None:
    client = signed_in(alice)
    attempt = ask(alice, conversation, worker)
    attempt.call("python", '{"code": "print(\'<i>hm</i>\')"}')
    page = client.get(f"/chat/{conversation.pk}/").content.decode()
    assert "Calling a tool" in page
    attempt.finish(FinishReason.TOOL_CALLS)
    record.record(attempt.id)
    called = path(conversation)[1]
    page = client.get(f"/chat/{conversation.pk}/").content.decode()
    assert "at work" in page
    assert "load delay:300ms" in page
    assert "ended without an answer" not in page
    news = f"/chat/{conversation.pk}/news/?leaf={called.pk}"
    assert f'id="calls-{called.pk}" hx-swap-oob="true"' in client.get(news, headers=HX).content.decode()
    actions_tool_calls.go_on_after(attempt.id)
    news_now = client.get(news, headers=HX).content.decode()
    assert "&lt;i&gt;hm&lt;/i&gt;" in news_now
    assert "<i>hm" not in news_now
    assert "data-generation" in news_now


def test_answer_begun_while_the_page_is_drawn_is_on_it_or_asked_for_again(
    alice: User, conversation: Conversation, worker: StepWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page must not find that nothing is about to come, and yet show a path that was read before it came."""
    client = signed_in(alice)
    attempt = ask(alice, conversation, worker)
    attempt.call("time", "{}")
    attempt.finish(FinishReason.TOOL_CALLS)
    record.record(attempt.id)
    called = path(conversation)[1]
    found = access.conversation_of
    begun: list[None] = []

    def slowly(user: User, pk: Any) -> Conversation:
        conversation = found(user, pk)
        if not begun:
            begun.append(None)
            actions_tool_calls.go_on_after(attempt.id)
        return conversation

    for address, headers in (
        (f"/chat/{conversation.pk}/news/?leaf={called.pk}", HX),
        (f"/chat/{conversation.pk}/", {}),
    ):
        monkeypatch.setattr(access, "conversation_of", slowly)
        page = client.get(address, headers=headers)
        monkeypatch.setattr(access, "conversation_of", found)
        assert "data-generation" in page.content.decode()
        Message.objects.filter(parent=called).delete()
        Message.objects.filter(pk=called.pk).update(calling_since=timezone.now())
        Conversation.objects.filter(pk=conversation.pk).update(leaf=called)
        begun.clear()


def test_calls_survive_export_import_and_fork_and_are_named_alone_in_a_link(
    alice: User, conversation: Conversation, worker: StepWorker, client: Client
) -> None:
    call(ask(alice, conversation, worker), ("python", '{"code": "print(6*7)"}'))
    second = worker.claim().start()
    second.write("42.")
    second.finish()
    tasks.record(str(second.id))
    conversation = Conversation.objects.get(pk=conversation.pk)
    record = reading.record_of(conversation)
    assert [c.result for c in record.messages[1].calls] == ["42"]
    snapshot = snapshots.of(conversation, with_thoughts=True)
    assert "6*7" not in json.dumps(snapshot)
    turns = list(snapshots.turns_of(snapshot))
    assert turns[1].tools == ("Python",)
    forked = tree.fork(alice, Message.objects.get(pk=conversation.leaf_id))
    assert [bool(m.calls) for m in path(forked)] == [False, True, False]
    assert forked.tools
    file: dict[str, Any] = json.loads(records.encode(record))
    assert file["conversation"]["messages"][1]["calls"][0]["name"] == "python"
    for name in ("md", "html"):
        written = signed_in(alice).get(f"/chat/{conversation.pk}/export/{name}/")
        text = b"".join(written.streaming_content) if written.streaming else written.content
        assert b"print(6*7)" in text
