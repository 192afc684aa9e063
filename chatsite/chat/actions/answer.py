"""How a new answer enters a conversation, whatever asks for it: request, locks, room, rows, and Redis after the commit.

Owns the order that every verb keeps: count and build the request first, which may take time, then lock, check, store.
Decides nothing about which answer is wanted: `actions` answers a new message, `retry` an old one once more.
Synchronous; what it accepted stays accepted, also while Redis is away.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.http import Http404
from django.utils import timezone
from django.utils.translation import gettext as _

from chatsite.accounts import limits
from chatsite.accounts.models import User, new_id
from chatsite.chat import errors, inference, notify
from chatsite.chat.generation import model_choice, quota
from chatsite.chat.generation import request as generation_request
from chatsite.chat.models import Conversation, Generation, Message
from chatsite.chat.queries import access
from chatsite.chat.text import title_of
from inference.messages.generation import ChatMessage, GenerationRequest, Opening, SamplingParams
from inference.messages.serialization import encode

MODEL_SAMPLING = SamplingParams()  # the model's own defaults


@dataclass(frozen=True)
class Sent:
    """What a send made, or, when `is_repeat`, what the first press of the same Send had made."""

    message: Message
    answer: Message
    generation: Generation
    is_repeat: bool = False


def add_answer(
    user: User,
    conversation: Conversation,
    message: Message,
    request: GenerationRequest,
    sampling: SamplingParams,
    *,
    is_shown: bool = True,
) -> Sent:
    """Rows of the answer to `message`, inside the caller's transaction; Redis hears of it after the commit."""
    own = sampling.over(generation_request.sampling_of(conversation))
    request, reserved = quota.reserve(user, request, is_cap_asked=own.max_tokens is not None)
    answer = Message.objects.create(conversation=conversation, parent=message, role=Message.Role.ASSISTANT)
    generation = Generation.objects.create(
        pk=request.id,
        user=user,
        message=answer,
        model=request.model,
        request=encode(request).decode(),
        reserved_tokens=reserved,
    )
    if is_shown:
        conversation.leaf = answer
    conversation.updated_at = timezone.now()
    if not conversation.title:
        conversation.title = title_of(message.content)
    conversation.save(update_fields=["leaf", "updated_at", "title"])
    transaction.on_commit(functools.partial(_begin, request, conversation.pk), robust=True)
    return Sent(message, answer, generation)


def request_of(
    conversation: Conversation,
    turns: tuple[ChatMessage, ...],
    sampling: SamplingParams,
    opening: Opening | None = None,
) -> GenerationRequest:
    """The request that asks for an answer to `turns`, from a model that this conversation may have now.

    Raises:
        PromptTooLong, InvalidSettings, ModelUnknown.
    """
    model = model_choice.choose(conversation.model).model
    return generation_request.request_for(
        new_id(), conversation, turns, model=model, sampling=sampling, opening=opening
    )


def lock(user: User, conversation: Conversation) -> Conversation:
    """The conversation as it is now, with the user's and its own row held until commit: one send at a time each."""
    User.objects.select_for_update(no_key=True).get(pk=user.pk)
    return access.locked_conversation_of(user, conversation.pk)


def check_room(user: User, conversation: Conversation, model: str) -> None:
    """Under the lock: whether one more answer may be written, in this conversation, for this user, on this site.

    Raises:
        AnswerRunning, TooManyActive, ConversationFull, SiteBusy.
    """
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


def check_there(conversation: Conversation, message_id: UUID | None) -> None:
    """Under the lock: a message that the request was made from may have been deleted meanwhile."""
    if message_id is not None and not conversation.messages.filter(pk=message_id).exists():
        raise Http404("There is nothing here.")


def take_request(user: User) -> None:
    """Count one request of this user's minute.

    Raises:
        TooManyRequests: the minute has had its share.
    """
    try:
        _rate().take(user.pk, settings.SMOLFLEET.max_requests_per_minute)
    except limits.RateExceeded as error:
        words = _("At most %(most)d messages a minute.") % {"most": error.max_per_minute}
        raise errors.TooManyRequests(words, retry_after_seconds=error.retry_after_seconds) from error


@functools.cache
def _rate() -> limits.RequestRate:
    return limits.RequestRate(inference.inference_client().redis)


def _begin(request: GenerationRequest, conversation_id: UUID) -> None:
    inference.submit(request)
    notify.tell_conversation(conversation_id, request.id)
    notify.tell(UUID(request.user_key), conversation_id, notify.Change.BEGAN)
