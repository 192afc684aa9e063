"""Temporary chats: what is asked and answered is written down nowhere. The page alone has the history, and sends all of
it with each question.

Owns the one generation of each question: a row without text, without a message and without its request. Redis holds
request and log while the answer is written, and forgets them as soon as the page has the end, or soon after. What Redis
loses is lost, and the answer then ends saying so. Synchronous; called by the views, `follow` and `tasks`.
"""

from __future__ import annotations

import copy
import dataclasses
import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Unpack
from uuid import UUID

import structlog
from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet
from django.http import Http404
from django.template.loader import render_to_string
from django.utils import timezone
from django.utils.safestring import mark_safe
from django.utils.translation import gettext as _

from chatsite.accounts import limits
from chatsite.accounts.models import User, new_id
from chatsite.accounts.time_zones import zone_of
from chatsite.chat import errors, inference
from chatsite.chat.actions import answer as actions_answer
from chatsite.chat.actions import send
from chatsite.chat.actions import settings as actions_settings
from chatsite.chat.actions.settings import Tuning
from chatsite.chat.generation import model_choice, quota, record
from chatsite.chat.generation import request as generation_request
from chatsite.chat.models import Conversation, Generation, Message
from chatsite.chat.queries import access
from chatsite.chat.rendering import message, stream
from chatsite.chat.text import clean, clean_typed
from inference.errors import EventsExpired, StoreUnavailable
from inference.messages.generation import ChatMessage, ErrorFacts, FinishReason, GenerationRequest, Role

log = structlog.get_logger(__name__)

KEPT_SECONDS = 60.0  # of an answer whose page has not said that it has it
MAX_TURNS = 400  # a form holds a thousand fields
LOST = ErrorFacts(
    code="request_lost",
    message="The question was lost before it was answered; a temporary chat is kept nowhere. Send it again.",
    retryable=True,
)


class NotTaken(errors.SendRefused):
    """A temporary question cannot wait in the database for Redis to come back."""

    code = "try_again"
    http_status = 503

    def __init__(self) -> None:
        super().__init__(_("Temporary messages cannot be taken just now. Try again in a minute."))


@dataclass(frozen=True)
class Asked:
    """A question, and its answer that is being written. Neither row of text exists in the database."""

    question: Message
    generation: Generation


def ask(
    user: User,
    history: Sequence[tuple[str, str]],
    text: str,
    **chosen: Unpack[Tuning],
) -> Asked:
    """Have `text` answered after `history` (role and text of each turn, as the page has them).

    Raises:
        SendRefused: nothing runs; the subclass says why.
    """
    text = send.checked_length(clean_typed(text).strip("\n"))
    if not text.strip():
        raise errors.EmptyMessage
    if len(history) >= MAX_TURNS:
        raise errors.ConversationFull(max_messages=MAX_TURNS)
    frame = Conversation(
        owner=user, prompt_date=timezone.localdate(timezone=zone_of(user)), **actions_settings.checked(**chosen)
    )  # never saved
    frame.tools = False  # a call needs rows to stand in
    actions_answer.take_request(user)
    request = _request(frame, history, text)
    generation, request = _row(user, request, is_cap_asked=frame.max_tokens is not None)
    try:
        inference.inference_client().submit(request)
    except StoreUnavailable:
        record.end_without_log(generation.pk, FinishReason.ERROR, LOST)
        raise NotTaken from None
    return Asked(Message(role=Message.Role.USER, content=text), generation)


def generation_of(user: User, generation_id: UUID | str) -> Generation:
    """Raises Http404 unless it is an answer of this user's temporary chats."""
    row = access.generation_of(user, generation_id)
    if row.source != Generation.Source.TEMPORARY:
        raise Http404
    return row


def answer_of(generation: Generation) -> Message:
    """The answer as far as Redis has it, as a message that is never saved; empty when it is forgotten."""
    answer = Message(pk=generation.pk, role=Message.Role.ASSISTANT)
    try:
        found = inference.inference_client().read(generation.pk)
    except (EventsExpired, StoreUnavailable):
        return answer
    answer.content, answer.reasoning = clean(found.text("content")), clean(found.text("reasoning"))
    return answer


def answer_html(generation: Generation, *, with_body: bool = True) -> str:
    """The article of an answer as it is now. Its form relies on the page's script for CSRF."""
    turn = shown(generation)
    if not with_body:
        turn = dataclasses.replace(turn, html=mark_safe(""))
    return render_to_string("chat/_temporary_answer.html", {"shown": turn})


def shown(generation: Generation) -> message.Shown:
    """The answer as the page shows it. Nothing of a settled one stays in a cache."""
    answer = answer_of(generation)
    if generation.is_active:
        answer.generation = copy.copy(generation)  # a copy: the row itself must go on having no message
        return message.shown(answer)
    return message.Shown(
        answer,
        generation,
        html=stream.render(answer.content, stream.scope_of(answer.pk)),
        reasoning=answer.reasoning,
    )


def forget(user: User, generation_id: UUID) -> None:
    """The page has the end: Redis need not keep it any longer. Raises Http404."""
    generation = generation_of(user, generation_id)
    if not generation.is_active:
        inference.forget(generation.pk)


def sweep() -> None:
    """Forget ended answers that no page has asked to forget. A log that escapes this expires by itself."""
    now = timezone.now()
    begin, end = (now - datetime.timedelta(seconds=seconds) for seconds in (2 * KEPT_SECONDS, KEPT_SECONDS))
    ended = _rows().filter(ended_at__gt=begin, ended_at__lte=end)
    for generation_id in ended.values_list("pk", flat=True):
        inference.inference_client().forget(generation_id)


def _rows() -> QuerySet[Generation]:
    return Generation.objects.filter(source=Generation.Source.TEMPORARY)


def _request(frame: Conversation, history: Sequence[tuple[str, str]], text: str) -> GenerationRequest:
    turns = [*generation_request.messages_for((), frame.system_prompt)]
    for role, content in history:
        if role not in (Role.USER, Role.ASSISTANT):
            raise errors.InvalidSettings(_("A turn of the history has no role that is known."))
        if content.strip():
            turns.append(ChatMessage(role=Role(role), content=clean_typed(content)))
    turns.append(ChatMessage(role=Role.USER, content=text))
    model = model_choice.choose(frame.model).model
    return generation_request.request_for(
        new_id(), frame, tuple(turns), model=model, sampling=actions_answer.MODEL_SAMPLING
    )


def _row(user: User, request: GenerationRequest, *, is_cap_asked: bool) -> tuple[Generation, GenerationRequest]:
    """The row, and the request as it may be answered."""
    site = settings.SMOLFLEET
    with transaction.atomic():
        User.objects.select_for_update(no_key=True).get(pk=user.pk)
        if (num_active := limits.num_active(user)) >= site.max_active_per_user:
            raise errors.TooManyActive(num_active=num_active, max_active=site.max_active_per_user)
        waiting = Generation.objects.filter(status=Generation.Status.ACTIVE, model=request.model)
        if site.max_waiting and (num_active := waiting.count()) >= site.max_waiting:
            raise errors.SiteBusy(num_active=num_active)
        request, reserved = quota.reserve(user, request, is_cap_asked=is_cap_asked)
        row = Generation.objects.create(
            pk=request.id,
            user=user,
            source=Generation.Source.TEMPORARY,
            model=request.model,
            reserved_tokens=reserved,
        )
        return row, request
