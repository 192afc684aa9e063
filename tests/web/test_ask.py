"""`manage.py ask`: the whole way from the terminal, with a scripted worker in another thread."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connections

from chatsite.accounts.models import User
from chatsite.chat.actions import send
from chatsite.chat.generation import record
from chatsite.chat.models import Conversation, Generation
from inference.coordination.waiting_room import Claim
from inference.messages.generation import ErrorFacts, FinishReason
from tests.web.chat_worker import MODEL, Attempt, StepWorker


class Answering(threading.Thread):
    """Claims the next generation, lets `script` write it, records it."""

    def __init__(self, worker: StepWorker, script: Callable[[Attempt], None]) -> None:
        super().__init__()
        self.worker, self.script = worker, script
        self.start()

    def run(self) -> None:
        deadline = time.monotonic() + 20
        while not isinstance(claim := self.worker.room.claim(MODEL, self.worker.name), Claim):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        attempt = Attempt(self.worker, claim).start()
        self.script(attempt)
        record.record(attempt.id)
        connections.close_all()


def ask(*arguments: str) -> tuple[str, str, int]:
    out, err, status = io.StringIO(), io.StringIO(), 0
    try:
        call_command("ask", *arguments, "--user", "alice", stdout=out, stderr=err)
    except SystemExit as end:
        status = int(end.code or 0)
    return out.getvalue(), err.getvalue(), status


def test_text_goes_to_stdout_and_the_answer_is_stored(alice: User, site: Any, worker: StepWorker) -> None:
    def script(attempt: Attempt) -> None:
        attempt.think("hm")
        attempt.write("Hel", "lo 🦊")
        attempt.finish()

    thread = Answering(worker, script)
    assert ask("hi", "--no-thinking", "--max-tokens", "7", "--seed", "3") == ("Hello 🦊\n", "", 0)
    thread.join()
    row = Generation.objects.select_related("message__conversation").get()
    assert row.message is not None
    assert (row.status, row.message.content, row.message.conversation.thinking) == ("done", "Hello 🦊", False)


def test_failure_is_said_with_its_reason(alice: User, site: Any, worker: StepWorker) -> None:
    def script(attempt: Attempt) -> None:
        attempt.write("so far")
        attempt.finish(FinishReason.ERROR, ErrorFacts(code="x", message="It broke."))

    thread = Answering(worker, script)
    assert ask("hi") == ("so far\n", "It broke.\n", 1)
    thread.join()


def test_conversation_goes_on(alice: User, conversation: Conversation, worker: StepWorker) -> None:
    def script(attempt: Attempt) -> None:
        attempt.write(str(len(attempt.claim.request.messages)))
        attempt.finish()

    for expected in ("1\n", "3\n"):
        thread = Answering(worker, script)
        assert ask("hi", "--conversation", str(conversation.pk))[0] == expected
        thread.join()


def test_interrupt_stops_the_answer(
    alice: User, site: Any, worker: StepWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while the text comes: the generation is asked to stop, and its partial text is kept."""
    from chatsite.management.commands import ask as command

    wrote = threading.Event()

    def script(attempt: Attempt) -> None:
        attempt.write("partial")
        wrote.set()
        deadline = time.monotonic() + 20
        while not worker.room.standing(attempt.id).stop_requested:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        attempt.finish(FinishReason.CANCELLED)

    interrupted = threading.Event()

    class Clock:
        monotonic = staticmethod(time.monotonic)

        @staticmethod
        def sleep(seconds: float) -> None:
            if wrote.is_set() and not interrupted.is_set():
                interrupted.set()
                raise KeyboardInterrupt
            time.sleep(seconds)

    monkeypatch.setattr(command, "time", Clock)
    thread = Answering(worker, script)
    out, err, status = ask("hi")
    thread.join()
    assert (out, err, status) == ("partial\n", "Stopped.\n", 130)
    assert Generation.objects.get().status == "stopped"


def test_refusals_are_one_sentence(alice: User, bob: User, conversation: Conversation) -> None:
    with pytest.raises(CommandError, match="is empty"):
        call_command("ask", " ", "--user", "alice")
    with pytest.raises(CommandError, match="no user 'nobody'"):
        call_command("ask", "hi", "--user", "nobody")
    with pytest.raises(CommandError, match="bob has no conversation"):
        call_command("ask", "hi", "--user", "bob", "--conversation", str(conversation.pk))
    with pytest.raises(CommandError, match="temperature"):
        call_command("ask", "hi", "--user", "alice", "--temperature", "9")
    assert not Generation.objects.exists()
    assert send.start_conversation(alice)
