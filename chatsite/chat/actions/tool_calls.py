"""Calls of tools between two answers: run them, keep what they came to, have the model go on.

An answer that ends with calls waits (`Message.calling_since`) until each has its result; then the next answer is begun
below it. One site worker runs the calls of an answer: it claims them first. What it left when it died counts as failed
after a while, so that every wait ends. Called by `tasks`, from the news that an answer was recorded and by the sweeper.
"""

from __future__ import annotations

import datetime
from uuid import UUID

import structlog
from django.conf import settings
from django.db import transaction
from django.http import Http404
from django.utils import timezone

from chatsite.accounts.models import User
from chatsite.chat import notify
from chatsite.chat.actions import retry, send
from chatsite.chat.errors import SendRefused
from chatsite.chat.generation.tool_calls import Call, stored
from chatsite.chat.generation.tool_calls import of as calls_of
from chatsite.chat.models import Conversation, Generation, Message
from chatsite.chat.tools import catalog

log = structlog.get_logger(__name__)

YOUNG_SECONDS = 3.0  # the task that recorded the answer is most likely just at it
LOST_SECONDS = 30  # beyond the time all calls may take: whoever claimed them is gone
MAX_DUE_ROWS = 100
LOST = "The tool was interrupted before it gave a result."
STOPPED = "It was stopped before this call was made."


def go_on_after(generation_id: UUID) -> None:
    """`go_on` for the answer of a generation that was just recorded; one without calls: nothing happens."""
    waiting = Message.objects.filter(generation=generation_id, calling_since__isnull=False)
    if message_id := waiting.values_list("pk", flat=True).first():
        go_on(message_id)


def due() -> list[UUID]:
    """Answers whose calls should be getting on, for the sweeper."""
    before = timezone.now() - datetime.timedelta(seconds=YOUNG_SECONDS)
    rows = Message.objects.filter(calling_since__lt=before, conversation__owner__is_active=True)
    return list(rows.order_by("calling_since").values_list("pk", flat=True)[:MAX_DUE_ROWS])


def go_on(message_id: UUID) -> None:
    """Make the calls of an answer and begin the next one. Repeats and overlaps are harmless."""
    message = _claimed(message_id)
    if message is None:
        return
    for call in calls_of(message):
        if call.result is None:
            if _is_stopped(message):
                break
            result = catalog.answer(message.conversation.owner, call.name, call.arguments)
            call.result, call.has_failed, call.seconds = result.text, result.has_failed, result.seconds
            log.info("tool called", message_id=str(message_id), tool=call.name, has_failed=result.has_failed)
            if not _keep(message_id, call):
                return  # deleted meanwhile
    _begin_next(message)


def stop(user: User, generation: Generation) -> None:
    """Ask for the end of an answer, in whatever phase it is. While tools are at work for it, it ends here: no further
    call is made and no other answer begun; what was called keeps its result. Ended already: nothing happens."""
    send.stop(user, generation)
    with transaction.atomic():
        message = _locked(generation.message_id)
        if message is None or message.conversation.owner_id != user.pk:
            return
        calls = calls_of(message)
        for call in calls:
            if call.result is None:
                call.result, call.has_failed = STOPPED, True
        message.calls = stored(calls)
        message.calling_since = None
        message.save(update_fields=["calls", "calling_since"])
        Generation.objects.filter(pk=generation.pk).update(stop_requested=True)
    _tell(message.conversation, notify.Change.ENDED)


def _claimed(message_id: UUID) -> Message | None:
    """The answer with its calls, which are this worker's to make now; None where they are another's, or done with."""
    now = timezone.now()
    with transaction.atomic():
        message = _locked(message_id)
        if message is None:
            return None
        calls = calls_of(message)
        left = [call for call in calls if call.result is None]
        claimed = [call for call in left if call.began_at]
        patience = datetime.timedelta(seconds=len(calls) * settings.SMOLFLEET.max_tool_seconds + LOST_SECONDS)
        is_lost = any(call.began_at < (now - patience).timestamp() for call in claimed)
        if claimed and not is_lost:
            return None
        for call in left:
            call.began_at = now.timestamp()
            if is_lost:  # it may be the very call that took its worker down: it is not made again
                call.result, call.has_failed = LOST, True
        message.calls = stored(calls)
        message.save(update_fields=["calls"])
    return message


def _locked(message_id: UUID | None) -> Message | None:
    """An answer that waits for its calls, its row held until commit."""
    rows = Message.objects.select_for_update(no_key=True, of=("self",)).select_related("conversation__owner")
    return rows.filter(pk=message_id, calling_since__isnull=False).first() if message_id else None


def _is_stopped(message: Message) -> bool:
    return not Message.objects.filter(pk=message.pk, calling_since__isnull=False).exists()


def _keep(message_id: UUID, done: Call) -> bool:
    """Store one result. False when nobody waits for it any more."""
    with transaction.atomic():
        message = _locked(message_id)
        if message is None:
            return False
        calls = [done if call.id == done.id else call for call in calls_of(message)]
        message.calls = stored(calls)
        message.save(update_fields=["calls"])
    return True


def _begin_next(message: Message) -> None:
    """The answer below, or in its place the reason why there is none: then it stands there failed, with its Retry."""
    user, conversation = message.conversation.owner, message.conversation
    try:
        retry.answer_after_calls(user, message)
    except SendRefused as refusal:
        with transaction.atomic():
            if not Message.objects.filter(pk=message.pk, calling_since__isnull=False).update(calling_since=None):
                return
            _add_failed(message, refusal)
        log.info("no answer after calls", message_id=str(message.pk), code=refusal.code, **refusal.facts)
        _tell(conversation, notify.Change.ENDED)
    except Http404:
        log.info("answer with calls is gone", message_id=str(message.pk))


def _add_failed(message: Message, refusal: SendRefused) -> None:
    before = Generation.objects.get(message=message)
    answer = Message.objects.create(conversation=message.conversation, parent=message, role=Message.Role.ASSISTANT)
    Generation.objects.create(
        user_id=before.user_id,
        message=answer,
        model=before.model,
        status=Generation.Status.FAILED,
        finish_reason="error",
        error_code=refusal.code[:64],
        error_message=refusal.message,
        is_retryable=True,
        ended_at=timezone.now(),
    )
    Conversation.objects.filter(pk=message.conversation_id, leaf=message).update(leaf=answer)


def _tell(conversation: Conversation, change: notify.Change) -> None:
    notify.tell(conversation.owner_id, conversation.pk, change)
