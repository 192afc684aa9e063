"""The end of a generation in Postgres: from its log, or without one. The only code that moves `active` to an end, and
with it the answer's cost into the ledger.

Order is everything here: commit first, then `recorded` in the log, so that no viewer is told "done" before it is
durable. Repeats are harmless: the update is conditional, and `recorded` is appended once. Called by `tasks`.
"""

from __future__ import annotations

from uuid import UUID

import structlog
from django.db import transaction
from django.db.models import Case, Value, When
from django.utils import timezone

from chatsite.chat import inference, notify
from chatsite.chat.generation import quota, titles, worker_report
from chatsite.chat.generation.tool_calls import begun, stored
from chatsite.chat.models import Generation, Message
from chatsite.chat.text import sha256_of
from inference.coordination.log_view import Log
from inference.errors import EventsExpired, LogUnreadable
from inference.messages.generation import ErrorFacts, Finish, FinishReason

log = structlog.get_logger(__name__)

STATUS_OF = {
    FinishReason.STOP: Generation.Status.DONE,
    FinishReason.LENGTH: Generation.Status.DONE,
    FinishReason.TOOL_CALLS: Generation.Status.DONE,
    FinishReason.CANCELLED: Generation.Status.STOPPED,
    FinishReason.ERROR: Generation.Status.FAILED,
}
UNEXPLAINED = ErrorFacts(code="error", message="The answer could not be written.", retryable=True)
UNREADABLE = ErrorFacts(code="log_unreadable", message="What the worker wrote could not be read.", retryable=True)


def record(generation_id: UUID, *, is_finished: bool = False) -> bool:
    """Bring a finished log into Postgres, then say so in the log. False when there is nothing finished to record.

    `is_finished`: Redis says so; a log without a finish is then none.

    Raises:
        StoreUnavailable: Redis cannot be reached; the sweeper comes again.
    """
    client = inference.inference_client()
    try:
        found = client.read(generation_id)
    except LogUnreadable:
        return end_unreadable(generation_id)
    except EventsExpired:
        return False
    if found.finish is None:
        return end_unreadable(generation_id) if is_finished else False
    if not end_from_log(generation_id, found, found.finish):
        client.forget(generation_id)  # its row was deleted while it was being written
        return False
    try:
        client.record(generation_id)
    except LogUnreadable:
        client.forget(generation_id)
    titles.ask_for(generation_id)
    return True


def end_from_log(generation_id: UUID, found: Log, finish: Finish) -> bool:
    """Write what the log says, unless the generation has ended already. False when it has no row."""
    generation = Generation.objects.filter(pk=generation_id).first()
    if generation is None or not generation.is_active:
        return generation is not None
    _verify(generation_id, found, finish)
    report = worker_report.report_of(generation, found, finish)
    content = report.content
    with transaction.atomic():
        if _end(generation_id, report.finish, content):
            calls = stored(begun(report.tool_calls)) if finish.reason is FinishReason.TOOL_CALLS else None
            since = timezone.now() if calls else None
            answer = Message.objects.filter(generation__pk=generation_id)
            texts = {"content": content, "reasoning": report.reasoning}
            is_calling = answer.update(**texts, calls=calls, calling_since=since) and calls
            if not is_calling:  # else it goes on: nobody need look yet
                notify.answer_ended(generation_id)
            titled = Generation.objects.filter(pk=generation_id, source=Generation.Source.TITLE).first()
            if titled is not None and titles.take(titled, content) and titled.conversation_id is not None:
                notify.tell(titled.user_id, titled.conversation_id, notify.Change.NAMED)
            log.info("recorded", generation_id=str(generation_id), reason=finish.reason, num_chars=len(content))
            return True
        return Generation.objects.filter(pk=generation_id).exists()


def end_without_log(generation_id: UUID, reason: FinishReason, error: ErrorFacts | None = None) -> bool:
    """End a generation that Redis knows nothing of. False when it had ended already."""
    with transaction.atomic():
        ended = _end(generation_id, Finish(reason=reason, error=error), "")
        if ended:
            notify.answer_ended(generation_id)
    if ended:
        log.info("ended without a log", generation_id=str(generation_id), reason=reason)
    return ended


def end_unreadable(generation_id: UUID) -> bool:
    """End a generation of which Redis has what no worker of ours wrote; whoever still writes it is told."""
    has_ended = end_without_log(generation_id, FinishReason.ERROR, UNREADABLE)
    inference.inference_client().forget(generation_id)
    return has_ended


def _end(generation_id: UUID, finish: Finish, content: str) -> bool:
    error = finish.error or (UNEXPLAINED if finish.reason is FinishReason.ERROR else None)
    usage = finish.usage
    has_ended_now = Generation.objects.filter(pk=generation_id, status=Generation.Status.ACTIVE).update(
        status=STATUS_OF[finish.reason],
        finish_reason=finish.reason.value,
        cut=finish.cut,
        num_dropped=finish.num_dropped_messages,
        error_code=error.code if error else "",
        error_message=error.message if error else "",
        is_retryable=error.retryable if error else False,
        worker=finish.worker,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        decode_seconds=finish.decode_seconds,
        content_sha256=Case(
            When(source=Generation.Source.TEMPORARY, then=Value("")),  # not even that is kept of those
            default=Value(sha256_of(content)),
        ),
        request="",
        ended_at=timezone.now(),
    )
    if has_ended_now:
        quota.enter(Generation.objects.get(pk=generation_id))
    return bool(has_ended_now)


def _verify(generation_id: UUID, found: Log, finish: Finish) -> None:
    """Say in the log when the text read is not the text the worker counted. What viewers were shown is kept all the
    same: it is the log's text, and an ended answer with a fault on record beats a lost one."""
    if not finish.content_sha256:
        return  # ended by nobody who had the text
    content = found.text("content")
    if len(content) != finish.num_chars or sha256_of(content) != finish.content_sha256:
        log.error(
            "text of a log differs from its finish",
            generation_id=str(generation_id),
            num_chars=len(content),
            num_chars_expected=finish.num_chars,
            num_events=len(found.events),
        )
