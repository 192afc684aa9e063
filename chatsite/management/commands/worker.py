"""`manage.py worker list` and `manage.py worker swap WORKER MODEL`: who serves what, and have one serve another model.

Works on every worker that reaches the same Redis, on whichever machine. The order is the worker's to carry out; this
command shows how far it is. Exit status: 0 done, 1 refused, called off or failed, with one sentence; 130 left alone,
and the worker goes on.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from chatsite.accounts.models import new_id
from inference.client import InferenceClient
from inference.errors import StoreUnavailable
from inference.messages.cards import WorkerCard
from inference.messages.swap import SwapOrder, SwapReport

POLL_SECONDS = 0.3
TAKE_SECONDS = 15.0  # a worker looks for orders every second
DEAD_SECONDS = 45.0  # without a card; a fresh process image says that it lives within a few
DEFAULT_TIMEOUT_SECONDS = 300.0
MAX_TIMEOUT_SECONDS = 86_400.0


class Command(BaseCommand):
    help = "Show the GPU workers, or have one of them serve another model without losing an answer."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True, metavar="list | swap")
        verbs.add_parser("list", help="name, model, state, free slots, device and notes of each")
        swap = verbs.add_parser("swap", help="have a worker serve another model")
        swap.add_argument("worker", metavar="WORKER", help="its name, as `worker list` shows it")
        swap.add_argument(
            "model", metavar="MODEL", help="catalog name, owner/repo:file.gguf, or a path on the worker's machine"
        )
        swap.add_argument(
            "--timeout",
            type=float,
            default=DEFAULT_TIMEOUT_SECONDS,
            metavar="SECONDS",
            help="for what waits for the old model, where nobody else serves it; then the swap is called off "
            f"(default: {DEFAULT_TIMEOUT_SECONDS:.0f})",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        client = InferenceClient(settings.INFERENCE)
        try:
            if options["verb"] == "list":
                self._list(client.workers())
            else:
                self._swap(client, options["worker"], options["model"], options["timeout"])
        except StoreUnavailable as error:
            raise CommandError(error.message) from error
        except KeyboardInterrupt:
            self.stderr.write("Left alone; the worker goes on with what it was told.")
            sys.exit(130)
        finally:
            client.close()

    def _list(self, cards: Sequence[WorkerCard]) -> None:
        if not cards:
            self.stdout.write("No worker is there.")
            return
        rows = [("NAME", "MODEL", "STATE", "FREE", "DEVICE", "NOTES")]
        for card in cards:
            state = f"{card.state}, changing to {card.next_model}" if card.next_model else card.state
            free = f"{card.num_free_slots}/{card.num_slots}"
            notes = " ".join((*card.degradations, *card.notes))
            rows.append((card.name, card.model.name, state, free, card.device or "-", notes or "-"))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
        for row in rows:
            self.stdout.write("  ".join((*(cell.ljust(width) for cell, width in zip(row[:-1], widths)), row[-1])))

    def _swap(self, client: InferenceClient, worker: str, model: str, timeout_seconds: float) -> None:
        if not 0 <= timeout_seconds <= MAX_TIMEOUT_SECONDS:
            raise CommandError(f"--timeout must be between 0 and {MAX_TIMEOUT_SECONDS:.0f}, not {timeout_seconds:g}.")
        names = [card.name for card in client.workers()]
        if worker not in names:
            raise CommandError(f"No worker is called {worker}; there are: {', '.join(names) or 'none'}.")
        order = SwapOrder(id=new_id(), model=model, timeout_seconds=timeout_seconds)
        if not client.order_swap(worker, order):
            raise CommandError(f"{worker} is changing its model already.")
        report = _Course(client, worker, order, self.stdout.write).follow()
        if report.state != "ready":
            raise CommandError(report.sentence)


class _Course:
    """Shows how far the worker is, a line for each step."""

    def __init__(self, client: InferenceClient, worker: str, order: SwapOrder, say: Any) -> None:
        self._client = client
        self._worker = worker
        self._order = order
        self._say = say
        self._said = ""
        self._seen_at = time.monotonic()  # the worker's last sign of life

    def follow(self) -> SwapReport:
        """Until the order has ended. Raises CommandError: the worker is gone, or never took it. StoreUnavailable: Redis
        was away for too long."""
        ordered_at = time.monotonic()
        self._show(SwapReport(order=self._order.id, state="checking", model=self._order.model))
        while True:
            try:
                report = self._client.swap_report(self._order.id)
                is_alive = any(card.name == self._worker for card in self._client.workers())
            except StoreUnavailable:
                if time.monotonic() - self._seen_at > DEAD_SECONDS:
                    raise
                time.sleep(POLL_SECONDS)
                continue
            now = time.monotonic()
            if is_alive:
                self._seen_at = now
            if report is not None:
                self._show(report)
                if report.is_end:
                    return report
            elif now - ordered_at > TAKE_SECONDS:
                self._client.withdraw_swap(self._worker, self._order.id)
                raise CommandError(f"{self._worker} did not take the order within {TAKE_SECONDS:.0f} s.")
            if now - self._seen_at > DEAD_SECONDS:
                self._client.withdraw_swap(self._worker, self._order.id)
                raise CommandError(f"{self._worker} is gone: no sign of life for {DEAD_SECONDS:.0f} s.")
            time.sleep(POLL_SECONDS)

    def _show(self, report: SwapReport) -> None:
        answers = f"{report.num_answers} answer{'' if report.num_answers == 1 else 's'}"
        line = {
            "checking": f"checking {report.model}",
            "waiting": f"waiting for {answers} that nobody else can write",
            "draining": f"draining {answers}",
            "loading": f"loading {report.model}",
            "ready": f"ready: {self._worker} serves {report.model}",
        }.get(report.state, "")
        if line and line != self._said:
            self._said = line
            self._say(line)
