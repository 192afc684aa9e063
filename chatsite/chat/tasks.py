"""What the site worker does for the chat: record answers, and sweep up whatever lost its way.

`chat.record` is sent by whoever finishes a log; losing or repeating it is harmless, because `chat.sweep` runs every
two seconds and looks into every active generation. Arguments and logs carry ids only, never text.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from uuid import UUID

import structlog
from celery import shared_task
from django.db import DatabaseError
from django.utils import timezone

from chatsite import advisory_lock
from chatsite.chat import inference
from chatsite.chat.actions import attachments, queue, temporary, tool_calls
from chatsite.chat.generation import record as generation_record
from chatsite.chat.generation import request as generation_request
from chatsite.chat.generation.reassign import GoneModels
from chatsite.chat.models import Generation
from inference.client import Swept
from inference.errors import InvalidRequest, LogUnreadable, StoreUnavailable
from inference.messages.generation import ErrorFacts, Finish, FinishReason

log = structlog.get_logger(__name__)

YOUNG_SECONDS = 1.0  # its own web process is most likely just submitting it
MAX_ACTIVE_ROWS = 500  # of one sweep
MAX_ENDED_ROWS = 200
ENDED_SECONDS = 60.0  # so long every sweep looks at an ended row again: its recorder may have died after the commit
LATE_SECONDS = 2 * 3600.0  # so far back a random few are looked at: a submit may come very late
MAX_LATE_ROWS = 20
MAX_SWEEP_SECONDS = 20.0

_gone_models = GoneModels()


@shared_task(name="chat.record", ignore_result=True)  # type: ignore[untyped-decorator]
def record(generation_id: str) -> None:
    try:
        if generation_record.record(UUID(generation_id)):
            tool_calls.go_on_after(UUID(generation_id))
            queue.advance_after(UUID(generation_id))
    except StoreUnavailable:
        log.warning("record left to the sweeper", generation_id=generation_id)


@shared_task(name="chat.call", ignore_result=True)  # type: ignore[untyped-decorator]
def call(message_id: str) -> None:
    """Make the calls of an answer that is still waiting for them."""
    tool_calls.go_on(UUID(message_id))


@shared_task(name="chat.sweep_drafts", ignore_result=True)  # type: ignore[untyped-decorator]
def sweep_drafts() -> None:
    """Delete uploaded files that were never sent."""
    attachments.sweep_drafts()


@shared_task(name="chat.sweep", ignore_result=True)  # type: ignore[untyped-decorator]
def sweep() -> None:
    """One look at every generation that should be getting on. Overlapping sweeps leave it to the one that runs."""
    try:
        with advisory_lock.held(advisory_lock.SWEEP) as is_alone:
            if is_alone:
                deadline = time.monotonic() + MAX_SWEEP_SECONDS
                _gone_models.look()
                _sweep_rows(_active_rows(), _sweep_active, deadline)
                _sweep_rows(_ended_rows(), _sweep_ended, deadline)
                temporary.sweep()
                _sweep_rows(tool_calls.due(), _sweep_calls, deadline)
                _sweep_rows(queue.due(), queue.advance, deadline)
    except StoreUnavailable:
        log.warning("sweep ended: redis is away")


def _sweep_rows(ids: list[UUID], sweep_one: Callable[[UUID], None], deadline: float) -> None:
    for pk in ids:
        if time.monotonic() > deadline:
            log.warning("sweep ended early", num_rows=len(ids))
            return
        try:
            sweep_one(pk)
        except (StoreUnavailable, DatabaseError):
            raise  # the next row would fare no better
        except Exception:
            log.exception("sweep of one row failed", sweep=sweep_one.__name__, pk=str(pk))


def _sweep_calls(message_id: UUID) -> None:
    """By a task: tools take their time, and the sweep must not wait for them."""
    call.delay(str(message_id))


def _active_rows() -> list[UUID]:
    """Random order: where there are more than one sweep takes, none waits for ever behind the same others."""
    before = timezone.now() - datetime.timedelta(seconds=YOUNG_SECONDS)
    rows = Generation.objects.filter(status=Generation.Status.ACTIVE, created_at__lt=before)
    return list(rows.order_by("?").values_list("pk", flat=True)[:MAX_ACTIVE_ROWS])


def _ended_rows() -> list[UUID]:
    now = timezone.now()
    ended = Generation.objects.filter(ended_at__gt=now - datetime.timedelta(seconds=LATE_SECONDS))
    just_ended = ended.filter(ended_at__gt=now - datetime.timedelta(seconds=ENDED_SECONDS)).order_by("-ended_at")
    ids = list(just_ended.values_list("pk", flat=True)[:MAX_ENDED_ROWS])
    late = ended.exclude(pk__in=ids).order_by("?").values_list("pk", flat=True)[:MAX_LATE_ROWS]
    return [*ids, *late]


def _sweep_active(generation_id: UUID) -> None:
    row = Generation.objects.filter(pk=generation_id, status=Generation.Status.ACTIVE).first()
    if row is None:
        return  # ended since the list was made
    try:
        swept = inference.inference_client().sweep(generation_id, stop_requested=row.stop_requested)
    except LogUnreadable:
        generation_record.end_unreadable(generation_id)
        return
    if swept in (Swept.FINISHED, Swept.ENDED):
        generation_record.record(generation_id, is_finished=True)
    elif swept is Swept.UNKNOWN and row.stop_requested:
        generation_record.end_without_log(generation_id, FinishReason.CANCELLED)
    elif swept is Swept.UNKNOWN:
        _enter_afresh(row)
    elif swept in (Swept.WAITING, Swept.RANG, Swept.ENTERED):
        _gone_models.take(row)


def _enter_afresh(row: Generation) -> None:
    if row.source == Generation.Source.TEMPORARY:  # its request was in Redis alone
        generation_record.end_without_log(row.pk, FinishReason.ERROR, temporary.LOST)
        return
    try:
        request = generation_request.frozen_request_of(row)
    except InvalidRequest as error:
        log.error("no request on an active row", generation_id=str(row.pk), why=error.code)
        lost = ErrorFacts(code="request_lost", message="The question could not be read again.", retryable=True)
        generation_record.end_without_log(row.pk, FinishReason.ERROR, lost)
        return
    inference.inference_client().submit(request)
    log.info("entered afresh", generation_id=str(row.pk))


def _sweep_ended(generation_id: UUID) -> None:
    client = inference.inference_client()
    try:
        standing = client.standing(generation_id)
        if standing.state == "unknown" or standing.is_recorded:
            return
        if standing.state != "finished":  # a second log of an answer that has ended: its submit came very late
            client.end(generation_id, Finish(reason=FinishReason.CANCELLED))
        client.record(generation_id)
    except LogUnreadable:
        client.forget(generation_id)
