"""Every write a person makes: start, send, edit, retry, stop, select. One verb, one transaction.

What a verb accepted stays accepted: the rows are committed first, and only then is Redis told. Redis being away makes
nothing fail; the sweeper carries on from the rows. Ends of generations are written by `recording` alone. Synchronous;
called by views, consumers (in a thread) and `manage.py ask`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Unpack
from uuid import UUID

import msgspec
import structlog
from django.conf import settings
from django.db import transaction
from django.http import Http404
from django.utils import timezone
from django.utils.translation import gettext as _

from chatsite.accounts import limits
from chatsite.accounts.models import User, new_id
from chatsite.chat import access, choosing, dispatch, errors, live
from chatsite.chat.attachments import chosen, of_message, tie
from chatsite.chat.models import Attachment, Conversation, Generation, Message, QueuedMessage
from chatsite.chat.text import clean_typed, title_of
from chatsite.chat.tuning import Tuning, check_model, checked
from inference.errors import StoreUnavailable
from inference.protocol import ChatMessage, GenerationRequest, Opening, Role, SamplingParams, encode

log = structlog.get_logger(__name__)

MODEL_SAMPLING = SamplingParams()  # the model's own defaults
# Said to the model at the end of the question, in one request; no conversation ever holds it.
STYLES = {"shorter": "Keep this answer short: a few sentences at most, only what matters most."}


@dataclass(frozen=True)
class Sent:
    """What a send made, or, when `is_repeat`, what the first press of the same Send had made."""

    message: Message
    answer: Message
    generation: Generation
    is_repeat: bool = False


def start_conversation(user: User, **tuning: Unpack[Tuning]) -> Conversation:
    """An empty conversation; what `tuning` leaves out follows the site and the model.

    Raises as `tuning.checked`.
    """
    return Conversation.objects.create(owner=user, prompt_date=timezone.localdate(), **checked(**tuning))


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
    sampling: SamplingParams = MODEL_SAMPLING,
    opening: Opening | None = None,
    attachments: Iterable[UUID | str] = (),
    queued: QueuedMessage | None = None,
) -> Sent:
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


def edit(user: User, message: Message, text: str, *, idempotency_key: UUID | None = None) -> Sent:
    """Ask differently: a sibling of the user's `message` with an answer of its own; the old branch stays.

    Raises as `send_message`.
    """
    if message.role != Message.Role.USER:
        raise errors.NotAnAnswer

    def files() -> list[Attachment]:
        return of_message(message)  # what it was asked about stays with the question, however it is worded

    return _send(
        *(user, message.conversation, lambda _: message.parent_id, text, idempotency_key, MODEL_SAMPLING),
        files_of_it=files,
    )


def retry(
    user: User,
    message: Message,
    *,
    sampling: SamplingParams = MODEL_SAMPLING,
    model: str = "",
    thinking: bool | None = None,
    style: str = "",
) -> Sent:
    """A new sibling of an answer that has ended, which stays; or the answer to a question that has none any more.

    `model`, `thinking` and `style` (a key of `STYLES`) hold for this one answer; without them it is written as the
    conversation says.

    Raises:
        NotAnAnswer: `message` is no answer, or is still being written.
        InvalidSettings: there is no such style.
        SendRefused: as for `send_message`.
        Http404: the message is not this user's, or no longer there.
    """
    question_id = _question_of(user, message)
    conversation = access.conversation_of(user, message.conversation_id)  # a copy of our own: it is never saved
    check_model(model)
    if style and style not in STYLES:
        raise errors.InvalidSettings(_("There is no style “%(name)s”.") % {"name": style}, param="style")
    conversation.model = model or conversation.model
    conversation.thinking = conversation.thinking if thinking is None else thinking
    return _answer_again(user, conversation, question_id, sampling, instruction=STYLES.get(style, ""))


def resume(user: User, message: Message) -> Sent:
    """Go on with an answer that was stopped, cut or broken off: a new sibling that begins with all it says.

    Raises:
        NotAnAnswer: `message` is no answer, or is still being written.
        NothingToResume: it came to its own end, or has no text to go on from.
        SendRefused: as for `send_message`.
        Http404: the message is not this user's, or no longer there.
    """
    answer = _ended_answer(user, message)
    generation = getattr(answer, "generation", None)
    if generation is None or not generation.is_unfinished or not (answer.content or answer.reasoning):
        raise errors.NothingToResume
    opening = Opening(content=answer.content, reasoning=answer.reasoning)
    return _answer_again(user, answer.conversation, answer.parent_id, MODEL_SAMPLING, opening)


def answer_after_calls(user: User, message: Message) -> Sent:
    """Have the model go on below an answer whose calls have their results. It leaves its wait in the same transaction.

    Raises:
        SendRefused: as for `send_message`; the answer still waits.
        Http404: the message is not this user's, no longer there, or waits no more.
    """
    conversation = access.conversation_of(user, message.conversation_id)  # a copy of our own: it is never saved
    conversation.model = Generation.objects.values_list("model", flat=True).get(message=message)
    path = access.path_of(conversation, message.pk)
    turns = dispatch.messages_for(path, conversation.system_prompt)
    request = _request(conversation, turns, MODEL_SAMPLING)
    with transaction.atomic():
        fresh = _lock(user, conversation)
        if not fresh.messages.filter(pk=message.pk, calling_since__isnull=False).update(calling_since=None):
            raise Http404("There is nothing here.")
        _check_room(user, fresh, request.model)
        return _answer(user, fresh, path[-1], request, is_shown=fresh.leaf_id == message.pk)


def stop(user: User, generation: Generation) -> None:
    """Ask for the end of an answer, in whatever phase it is. Ended already: nothing happens.

    Postgres first, so that the wish outlives Redis; the sweeper repeats it until the generation has ended.
    """
    wished = Generation.objects.filter(pk=generation.pk, user=user, status=Generation.Status.ACTIVE)
    if wished.update(stop_requested=True):
        transaction.on_commit(functools.partial(_cancel, generation.pk), robust=True)


def select(user: User, message: Message) -> Conversation:
    """Show the branch that `message` lies on, down to the newest message below it.

    Raises:
        Http404: the message is not this user's, or no longer there.
    """
    with transaction.atomic():
        conversation = access.locked_conversation_of(user, message.conversation_id)
        leaf_id = access.newest_leaf_of(conversation, message.pk)
        if leaf_id is None:
            raise Http404
        conversation.leaf_id = leaf_id
        conversation.save(update_fields=["leaf"])
    return conversation


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
    turns = dispatch.messages_for((), conversation.system_prompt)
    typed = dispatch.typed_with_files(text, files)
    _request(conversation, (*turns, ChatMessage(role=Role.USER, content=typed)), MODEL_SAMPLING)


def _ended_answer(user: User, message: Message) -> Message:
    message = access.message_of(user, message.pk)
    if message.role != Message.Role.ASSISTANT or message.parent_id is None:
        raise errors.NotAnAnswer
    generation = Generation.objects.filter(message=message).first()
    if generation is not None and generation.is_active:
        raise errors.AnswerRunning
    return message


def _question_of(user: User, message: Message) -> UUID | None:
    """What an answer beside `message` answers: `message` itself, where it is a question without one."""
    found = access.message_of(user, message.pk)
    if found.role == Message.Role.USER and not found.children.exists():
        return found.pk
    return _ended_answer(user, found).parent_id


def _answer_again(
    user: User,
    conversation: Conversation,
    question_id: UUID | None,
    sampling: SamplingParams,
    opening: Opening | None = None,
    instruction: str = "",
) -> Sent:
    """Another answer to a question."""
    take_request(user)
    path = access.path_of(conversation, question_id)
    turns = dispatch.messages_for(path, conversation.system_prompt)
    if instruction:
        turns = (*turns[:-1], msgspec.structs.replace(turns[-1], content=f"{turns[-1].content}\n\n{instruction}"))
    request = _request(conversation, turns, sampling, opening)
    with transaction.atomic():
        fresh = _lock(user, conversation)
        _check_there(fresh, question_id)
        _check_room(user, fresh, request.model)
        return _answer(user, fresh, path[-1], request)


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
) -> Sent:
    text = checked_text(text)
    conversation = access.conversation_of(user, conversation.pk)
    if repeat := _repeat(conversation, idempotency_key):
        return repeat
    try:
        take_request(user)
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
) -> Sent:
    typed = dispatch.typed_with_files(text, files)
    while True:
        # Counting tokens takes time and may wait for Redis, so it happens before the lock; a leaf that moved meanwhile
        # means another message came first, and the request is made again on top of it.
        parent_id = parent_of(conversation)
        path = access.path_of(conversation, parent_id) if parent_id else []
        turns = dispatch.messages_for(path, conversation.system_prompt)
        turns = (*turns, ChatMessage(role=Role.USER, content=typed))
        request = _request(conversation, turns, sampling, opening)
        with transaction.atomic():
            fresh = _lock(user, conversation)
            if repeat := _repeat(fresh, idempotency_key):
                return repeat
            _check_room(user, fresh, request.model)
            if parent_of(fresh) == parent_id:
                _check_there(fresh, parent_id)
                _leave_queue(fresh, idempotency_key, queued)
                message = Message.objects.create(
                    conversation=fresh,
                    parent=path[-1] if path else None,
                    role=Message.Role.USER,
                    content=text,
                    idempotency_key=idempotency_key,
                )
                tie(files, message)
                return _answer(user, fresh, message, request)
        conversation = fresh


def _answer(
    user: User, conversation: Conversation, message: Message, request: GenerationRequest, *, is_shown: bool = True
) -> Sent:
    """Rows of the answer to `message`, inside the caller's transaction; Redis hears of it after the commit."""
    answer = Message.objects.create(conversation=conversation, parent=message, role=Message.Role.ASSISTANT)
    generation = Generation.objects.create(
        pk=request.id, user=user, message=answer, model=request.model, request=encode(request).decode()
    )
    if is_shown:
        conversation.leaf = answer
    conversation.updated_at = timezone.now()
    if not conversation.title:
        conversation.title = title_of(message.content)
    conversation.save(update_fields=["leaf", "updated_at", "title"])
    transaction.on_commit(functools.partial(_begin, request, conversation.pk), robust=True)
    return Sent(message, answer, generation)


def _request(
    conversation: Conversation,
    turns: tuple[ChatMessage, ...],
    sampling: SamplingParams,
    opening: Opening | None = None,
) -> GenerationRequest:
    model = choosing.choose(conversation.model).model
    return dispatch.request_for(new_id(), conversation, turns, model=model, sampling=sampling, opening=opening)


def _lock(user: User, conversation: Conversation) -> Conversation:
    """The conversation as it is now, with the user's and its own row held until commit: one send at a time each."""
    User.objects.select_for_update(no_key=True).get(pk=user.pk)
    return access.locked_conversation_of(user, conversation.pk)


def _check_room(user: User, conversation: Conversation, model: str) -> None:
    site = settings.SMOLFLEET
    if access.is_answering(conversation):
        raise errors.AnswerRunning
    if (num_active := limits.num_active(user)) >= site.max_active_per_user:
        raise errors.TooManyActive(num_active=num_active, max_active=site.max_active_per_user)
    if conversation.messages.count() >= site.max_conversation_messages:
        raise errors.ConversationFull(max_messages=site.max_conversation_messages)
    if site.max_waiting:  # counted in Postgres, those being written included: it holds while Redis is away, too
        waiting = Generation.objects.filter(status=Generation.Status.ACTIVE, model=model)
        if (num_active := waiting.count()) >= site.max_waiting:
            raise errors.SiteBusy(num_active=num_active)


def _check_there(conversation: Conversation, message_id: UUID | None) -> None:
    """Under the lock: a message that the request was made from may have been deleted meanwhile."""
    if message_id is not None and not conversation.messages.filter(pk=message_id).exists():
        raise Http404("There is nothing here.")


def _leave_queue(conversation: Conversation, idempotency_key: UUID | None, queued: QueuedMessage | None) -> None:
    """Take `queued` out, as it was read; a press of Send is either a message or an entry of the queue."""
    waiting = conversation.queued
    if queued is not None and not waiting.filter(pk=queued.pk, content=queued.content).delete()[0]:
        raise errors.QueueMoved
    if idempotency_key is not None and waiting.filter(idempotency_key=idempotency_key).exists():
        raise errors.QueueMoved


def _repeat(conversation: Conversation, idempotency_key: UUID | None) -> Sent | None:
    if idempotency_key is None:
        return None
    message = conversation.messages.filter(idempotency_key=idempotency_key).first()
    if message is None:
        return None
    answer = message.children.filter(generation__isnull=False).order_by("pk").select_related("generation").first()
    if answer is None:
        raise errors.AnswerGone
    return Sent(message, answer, answer.generation, is_repeat=True)


def take_request(user: User) -> None:
    try:
        _rate().take(user.pk, settings.SMOLFLEET.max_requests_per_minute)
    except limits.RateExceeded as error:
        words = _("At most %(most)d messages a minute.") % {"most": error.max_per_minute}
        raise errors.TooManyRequests(words, retry_after_seconds=error.retry_after_seconds) from error


@functools.cache
def _rate() -> limits.RequestRate:
    return limits.RequestRate(dispatch.inference_client().redis)


def checked_length(text: str) -> str:
    max_chars = settings.SMOLFLEET.max_message_chars
    if len(text) > max_chars:
        raise errors.MessageTooLong(num_chars=len(text), max_chars=max_chars)
    return text


def _begin(request: GenerationRequest, conversation_id: UUID) -> None:
    dispatch.submit(request)
    dispatch.tell_conversation(conversation_id, request.id)
    live.tell(UUID(request.user_key), conversation_id, live.Change.BEGAN)


def _cancel(generation_id: UUID) -> None:
    try:
        dispatch.inference_client().cancel(generation_id)
    except StoreUnavailable:
        log.warning("stop left to the sweeper", generation_id=str(generation_id))
