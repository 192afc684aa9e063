"""What a person writes: start, send, ask differently, stop. One verb, one transaction.

What a verb accepted stays accepted: the rows are committed first, and only then is Redis told. Redis being away makes
nothing fail; the sweeper carries on from the rows. Ends of generations are written by `record` alone. Synchronous;
called by views, consumers (in a thread) and `manage.py ask`. An answer written again is `retry`, what happens to the
tree otherwise `branches`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Unpack
from uuid import UUID

import structlog
from django.conf import settings
from django.db import transaction
from django.utils import timezone

from chatsite.accounts.models import User
from chatsite.accounts.time_zones import zone_of
from chatsite.chat import errors, inference
from chatsite.chat.actions import answer as actions_answer
from chatsite.chat.actions.attachments import chosen, of_message, tie
from chatsite.chat.actions.settings import Tuning, checked
from chatsite.chat.generation import request as generation_request
from chatsite.chat.models import Attachment, Conversation, Generation, Message, QueuedMessage
from chatsite.chat.queries import access
from chatsite.chat.text import clean_typed
from inference.errors import LogUnreadable, StoreUnavailable
from inference.messages.generation import ChatMessage, Opening, Role, SamplingParams

log = structlog.get_logger(__name__)


def start_conversation(user: User, **tuning: Unpack[Tuning]) -> Conversation:
    """An empty conversation; what `tuning` leaves out follows the site and the model.

    Raises as `tuning.checked`.
    """
    return Conversation.objects.create(
        owner=user, prompt_date=timezone.localdate(timezone=zone_of(user)), **checked(**tuning)
    )


def begin(
    user: User,
    text: str,
    *,
    idempotency_key: UUID | None = None,
    attachments: Iterable[UUID | str] = (),
    **tuning: Unpack[Tuning],
) -> Conversation:
    """A conversation with its first message. The same press of Send twice, also at once, begins one.

    Raises as `start_conversation` and `send_message`; nothing is left behind.
    """
    with transaction.atomic():
        User.objects.select_for_update(no_key=True).get(pk=user.pk)
        if idempotency_key is not None:
            repeat = access.conversations_of(user).filter(messages__idempotency_key=idempotency_key).first()
            if repeat is not None:
                return repeat
        begun = start_conversation(user, **tuning)
        send_message(user, begun, text, idempotency_key=idempotency_key, attachments=attachments)
        return begun


def send_message(
    user: User,
    conversation: Conversation,
    text: str,
    *,
    idempotency_key: UUID | None = None,
    sampling: SamplingParams = actions_answer.MODEL_SAMPLING,
    opening: Opening | None = None,
    attachments: Iterable[UUID | str] = (),
    queued: QueuedMessage | None = None,
) -> actions_answer.Sent:
    """Add the user's message to the end of the shown path, and an answer that is being written.

    `idempotency_key` stands for one press of Send: a repeat returns what the first made, also when both come at once.
    The answer begins with `opening`, where there is one. `attachments` are ids of drafts to take along. `queued` leaves
    the queue as the message enters the conversation.

    Raises:
        QueueMoved: `queued` is not what it was, or another entry of the queue has this key already.
        SendRefused: nothing was stored; the subclass says why.
        Http404: the conversation is not this user's, or no longer there.
    """

    def files() -> list[Attachment]:
        return chosen(user, attachments)

    return _send(
        *(user, conversation, lambda fresh: fresh.leaf_id, text, idempotency_key, sampling, opening, files),
        queued=queued,
    )


def edit(user: User, message: Message, text: str, *, idempotency_key: UUID | None = None) -> actions_answer.Sent:
    """Ask differently: a sibling of the user's `message` with an answer of its own; the old branch stays.

    Raises as `send_message`.
    """
    if message.role != Message.Role.USER:
        raise errors.NotAnAnswer

    def files() -> list[Attachment]:
        return of_message(message)  # what it was asked about stays with the question, however it is worded

    return _send(
        *(
            user,
            message.conversation,
            lambda _: message.parent_id,
            text,
            idempotency_key,
            actions_answer.MODEL_SAMPLING,
        ),
        files_of_it=files,
    )


def stop(user: User, generation: Generation) -> None:
    """Ask for the end of an answer, in whatever phase it is. Ended already: nothing happens.

    Postgres first, so that the wish outlives Redis; the sweeper repeats it until the generation has ended.
    """
    wished = Generation.objects.filter(pk=generation.pk, user=user, status=Generation.Status.ACTIVE)
    if wished.update(stop_requested=True):
        transaction.on_commit(functools.partial(_cancel, generation.pk), robust=True)


def checked_text(text: str) -> str:
    """What was typed, as it is stored.

    Raises:
        EmptyMessage, MessageTooLong.
    """
    text = checked_length(clean_typed(text).strip("\n"))
    if not text.strip():
        raise errors.EmptyMessage
    return text


def check_fits(conversation: Conversation, text: str, files: Iterable[Attachment] = ()) -> None:
    """Whether the message alone, without what was said before it, can ever be sent here.

    Raises:
        PromptTooLong, InvalidSettings, ModelUnknown.
    """
    turns = generation_request.messages_for((), conversation.system_prompt)
    typed = generation_request.typed_with_files(text, files)
    actions_answer.request_of(
        conversation, (*turns, ChatMessage(role=Role.USER, content=typed)), actions_answer.MODEL_SAMPLING
    )


def _send(
    user: User,
    conversation: Conversation,
    parent_of: Callable[[Conversation], UUID | None],
    text: str,
    idempotency_key: UUID | None,
    sampling: SamplingParams,
    opening: Opening | None = None,
    files_of_it: Callable[[], list[Attachment]] = list,
    queued: QueuedMessage | None = None,
) -> actions_answer.Sent:
    text = checked_text(text)
    conversation = access.conversation_of(user, conversation.pk)
    if repeat := _repeat(conversation, idempotency_key):
        return repeat
    try:
        actions_answer.take_request(user)
        files = files_of_it()  # only now: at a repeat the drafts are gone
        return _send_first(user, conversation, parent_of, text, idempotency_key, sampling, opening, files, queued)
    except errors.SendRefused:
        if repeat := _repeat(conversation, idempotency_key):
            return repeat  # the same press came twice at once and the other was taken
        raise


def _send_first(
    user: User,
    conversation: Conversation,
    parent_of: Callable[[Conversation], UUID | None],
    text: str,
    idempotency_key: UUID | None,
    sampling: SamplingParams,
    opening: Opening | None = None,
    files: Sequence[Attachment] = (),
    queued: QueuedMessage | None = None,
) -> actions_answer.Sent:
    typed = generation_request.typed_with_files(text, files)
    while True:
        # Counting tokens takes time and may wait for Redis, so it happens before the lock; a leaf that moved meanwhile
        # means another message came first, and the request is made again on top of it.
        parent_id = parent_of(conversation)
        path = access.path_of(conversation, parent_id) if parent_id else []
        turns = generation_request.messages_for(path, conversation.system_prompt)
        turns = (*turns, ChatMessage(role=Role.USER, content=typed))
        request = actions_answer.request_of(conversation, turns, sampling, opening)
        with transaction.atomic():
            fresh = actions_answer.lock(user, conversation)
            if repeat := _repeat(fresh, idempotency_key):
                return repeat
            actions_answer.check_room(user, fresh, request.model)
            if parent_of(fresh) == parent_id:
                actions_answer.check_there(fresh, parent_id)
                _leave_queue(fresh, idempotency_key, queued)
                message = Message.objects.create(
                    conversation=fresh,
                    parent=path[-1] if path else None,
                    role=Message.Role.USER,
                    content=text,
                    idempotency_key=idempotency_key,
                )
                tie(files, message)
                return actions_answer.add_answer(user, fresh, message, request, sampling)
        conversation = fresh


def _leave_queue(conversation: Conversation, idempotency_key: UUID | None, queued: QueuedMessage | None) -> None:
    """Take `queued` out, as it was read; a press of Send is either a message or an entry of the queue."""
    waiting = conversation.queued
    if queued is not None and not waiting.filter(pk=queued.pk, content=queued.content).delete()[0]:
        raise errors.QueueMoved
    if idempotency_key is not None and waiting.filter(idempotency_key=idempotency_key).exists():
        raise errors.QueueMoved


def _repeat(conversation: Conversation, idempotency_key: UUID | None) -> actions_answer.Sent | None:
    if idempotency_key is None:
        return None
    message = conversation.messages.filter(idempotency_key=idempotency_key).first()
    if message is None:
        return None
    answer = message.children.filter(generation__isnull=False).order_by("pk").select_related("generation").first()
    if answer is None:
        raise errors.AnswerGone
    return actions_answer.Sent(message, answer, answer.generation, is_repeat=True)


def checked_length(text: str) -> str:
    max_chars = settings.SMOLFLEET.max_message_chars
    if len(text) > max_chars:
        raise errors.MessageTooLong(num_chars=len(text), max_chars=max_chars)
    return text


def _cancel(generation_id: UUID) -> None:
    try:
        inference.inference_client().cancel(generation_id)
    except (StoreUnavailable, LogUnreadable):
        log.warning("stop left to the sweeper", generation_id=str(generation_id))
