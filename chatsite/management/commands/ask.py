"""`manage.py ask "…"`: the whole way of a message from the terminal, against the servers of `STATE_DIR`.

Sends as the site does, then follows the log as a page does: the text goes to stdout as it comes, where it stands goes
to stderr when that is a terminal. Ctrl-C stops the answer, a second one only leaves. Exit status: 0 done, 1 failed or
refused, 130 stopped.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import OperationalError, close_old_connections
from django.http import Http404

from chatsite.accounts.models import User
from chatsite.chat import inference
from chatsite.chat.actions import send
from chatsite.chat.errors import SendRefused
from chatsite.chat.models import Generation
from chatsite.chat.queries import access
from chatsite.chat.text import clean
from inference.coordination.log_view import Cursor, Log
from inference.errors import EventsExpired, InvalidRequest, LogUnreadable, StoreUnavailable
from inference.messages.generation import Event, EventKind, SamplingParams, Standing

POLL_SECONDS = 0.1
STATUS_SECONDS = 1.0
FAILED, STOPPED = 1, 130


class Command(BaseCommand):
    help = "Ask a question and print the answer as it is written."
    requires_system_checks = []

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("question")
        parser.add_argument("--user", default="admin", help="who asks; default: admin")
        parser.add_argument("--model", default="", help="catalog name; default: the site's")
        parser.add_argument("--conversation", default="", help="id of a conversation to go on with; default: a new one")
        parser.add_argument("--thinking", action=argparse.BooleanOptionalAction, default=None)
        parser.add_argument("--max-tokens", type=int)
        parser.add_argument("--seed", type=int)
        parser.add_argument("--temperature", type=float)

    def handle(self, *args: Any, **options: Any) -> None:
        sampling = SamplingParams(
            max_tokens=options["max_tokens"], seed=options["seed"], temperature=options["temperature"]
        )
        try:
            sampling.check()
            user = User.objects.get(username=options["user"])
            if options["conversation"]:
                conversation = access.conversation_of(user, options["conversation"])
            else:
                conversation = send.start_conversation(user, model=options["model"], thinking=options["thinking"])
            sent = send.send_message(user, conversation, options["question"], sampling=sampling)
        except User.DoesNotExist:
            raise CommandError(f"There is no user {options['user']!r}.") from None
        except Http404:
            raise CommandError(f"{options['user']} has no conversation {options['conversation']!r}.") from None
        except (SendRefused, InvalidRequest) as error:
            raise CommandError(error.message) from error
        except OperationalError as error:
            raise CommandError(settings_trouble(error)) from error
        status = _Answer(self, user, sent.generation).follow()
        if status:
            sys.exit(status)


def settings_trouble(error: OperationalError) -> str:
    from chatsite.settings import database_trouble

    return database_trouble(error)


class _Answer:
    """Prints one answer while it is written."""

    def __init__(self, command: Command, user: User, generation: Generation) -> None:
        self._out = command.stdout
        self._err = command.stderr
        self._shows_status = sys.stderr.isatty()
        self._status = ""
        self._user = user
        self._generation = generation
        self._client = inference.inference_client()
        self._cursor: Cursor | None = None
        self._text = ""
        self._ends_line = True

    def follow(self) -> int:
        """Until the answer is in Postgres. Returns the exit status."""
        while True:
            try:
                row = self._wait_for_end()
                break
            except KeyboardInterrupt:
                self._say("stopping …")
                send.stop(self._user, self._generation)
                try:
                    row = self._wait_for_end()
                    break
                except KeyboardInterrupt:
                    return STOPPED
        self._print_rest(row)
        if row.status == Generation.Status.DONE:
            return 0
        if row.status == Generation.Status.STOPPED:
            self._note("Stopped.")
            return STOPPED
        self._note(row.error_message or "The answer failed.")
        return FAILED

    def _wait_for_end(self) -> Generation:
        status_at = 0.0
        while True:
            found = self._read()
            if found is not None and self._take(found):
                return self._row()
            if time.monotonic() >= status_at:
                status_at = time.monotonic() + STATUS_SECONDS
                if found is None and not (row := self._row()).is_active:
                    return row
                if not self._text:
                    self._say(self._where())
            time.sleep(POLL_SECONDS)

    def _read(self) -> Log | None:
        try:
            found = self._client.read(self._generation.pk, self._cursor.seq if self._cursor else 0)
            if self._cursor and found.mark != self._cursor.mark:
                found = self._client.read(self._generation.pk)
                self._begin_again()
        except (EventsExpired, StoreUnavailable):
            return None
        self._cursor = Cursor(found.mark, found.events[-1].seq if found.events else self._seq_in(found.mark))
        return found

    def _seq_in(self, mark: str) -> int:
        return self._cursor.seq if self._cursor and self._cursor.mark == mark else 0

    def _take(self, found: Log) -> bool:
        """Print what is new; True when that was the last."""
        for event in found.events:
            if event.kind is EventKind.PROGRESS:
                self._say(f"reading the prompt: {event.num_done} of {event.num_total} tokens")
            self._print_event(event)
        return found.is_recorded

    def _print_event(self, event: Event) -> None:
        content = clean("".join(delta.text for delta in event.deltas if delta.kind == "content"))
        if content:
            self._say("")
            self._print(content)
        elif event.deltas:
            self._say("thinking …")

    def _print(self, text: str) -> None:
        self._text += text
        self._ends_line = text.endswith("\n")
        self._out.write(text, ending="")
        self._out.flush()

    def _print_rest(self, row: Generation) -> None:
        """What Postgres has beyond what was printed: the log may have gone before it was read to its end."""
        assert row.message is not None, "the chat's generations have a message"
        if row.message.content.startswith(self._text):
            rest = row.message.content[len(self._text) :]
        else:
            self._begin_again()
            rest = row.message.content
        if rest:
            self._print(rest)
        self._say("")
        if not self._ends_line:
            self._out.write("")

    def _begin_again(self) -> None:
        if self._text:
            self._note("\nThe answer begins again.")
        self._text = ""

    def _where(self) -> str:
        try:
            standing = self._client.standing(self._generation.pk)
            return _sentence(standing, has_worker=self._has_worker())
        except StoreUnavailable:
            return "Redis is away; waiting for it"
        except LogUnreadable:
            return "what the worker wrote cannot be read; waiting for the sweeper"

    def _has_worker(self) -> bool:
        return any(card.model.name == self._generation.model for card in self._client.workers())

    def _row(self) -> Generation:
        close_old_connections()
        return access.generation_of(self._user, self._generation.pk)

    def _say(self, status: str) -> None:
        """Replace the status line."""
        if self._shows_status and status != self._status:
            self._err.write(f"\r\x1b[K{status}", ending="")
            self._err.flush()
            self._status = status

    def _note(self, sentence: str) -> None:
        self._say("")
        self._err.write(sentence)


def _sentence(standing: Standing, *, has_worker: bool) -> str:
    match standing.state:
        case "waiting" if not has_worker:
            return "no worker serves this model now; waiting for one"
        case "waiting":
            eta = "" if standing.eta_seconds is None else f", about {standing.eta_seconds:.0f} s"
            return f"position {standing.position} of {standing.num_waiting}{eta}"
        case "lapsed":
            return "the worker was lost; another one goes on"
        case "leased":
            return f"with {standing.worker}"
    return "waiting"
