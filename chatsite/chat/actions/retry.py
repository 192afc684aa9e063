"""Answers that no new message asks for: one written again, gone on with, or begun below calls that have their results.

The answers before stay, as siblings of the new one. Like `actions`, one verb is one transaction, and what was accepted
stays accepted. Synchronous; called by `message` and `tool_calls`.
"""

from __future__ import annotations

from uuid import UUID

import msgspec
from django.db import transaction
from django.http import Http404
from django.utils.translation import gettext as _

from chatsite.accounts.models import User
from chatsite.chat import errors
from chatsite.chat.actions import answer as actions_answer
from chatsite.chat.actions.settings import check_model
from chatsite.chat.generation import request as generation_request
from chatsite.chat.models import Conversation, Generation, Message
from chatsite.chat.queries import access
from inference.messages.generation import Opening, SamplingParams

# Said to the model at the end of the question, in one request; no conversation ever holds it.
STYLES = {"shorter": "Keep this answer short: a few sentences at most, only what matters most."}


def retry(
    user: User,
    message: Message,
    *,
    sampling: SamplingParams = actions_answer.MODEL_SAMPLING,
    model: str = "",
    thinking: bool | None = None,
    style: str = "",
) -> actions_answer.Sent:
    """A new sibling of an answer that has ended, which stays; or the answer to a question that has none any more.

    `model`, `thinking` and `style` (a key of `STYLES`) hold for this one answer; without them it is written as the
    conversation says.

    Raises:
        NotAnAnswer: `message` is no answer, or is still being written.
        InvalidSettings: there is no such style.
        SendRefused: as for `actions.send_message`.
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


def resume(user: User, message: Message) -> actions_answer.Sent:
    """Go on with an answer that was stopped, cut or broken off: a new sibling that begins with all it says.

    Raises:
        NotAnAnswer: `message` is no answer, or is still being written.
        NothingToResume: it came to its own end, or has no text to go on from.
        SendRefused: as for `actions.send_message`.
        Http404: the message is not this user's, or no longer there.
    """
    answer = _ended_answer(user, message)
    generation = getattr(answer, "generation", None)
    if generation is None or not generation.is_unfinished or not (answer.content or answer.reasoning):
        raise errors.NothingToResume
    opening = Opening(content=answer.content, reasoning=answer.reasoning)
    return _answer_again(user, answer.conversation, answer.parent_id, actions_answer.MODEL_SAMPLING, opening)


def answer_after_calls(user: User, message: Message) -> actions_answer.Sent:
    """Have the model go on below an answer whose calls have their results. It leaves its wait in the same transaction.

    Raises:
        SendRefused: as for `actions.send_message`; the answer still waits.
        Http404: the message is not this user's, no longer there, or waits no more.
    """
    conversation = access.conversation_of(user, message.conversation_id)  # a copy of our own: it is never saved
    conversation.model = Generation.objects.values_list("model", flat=True).get(message=message)
    path = access.path_of(conversation, message.pk)
    turns = generation_request.messages_for(path, conversation.system_prompt)
    request = actions_answer.request_of(conversation, turns, actions_answer.MODEL_SAMPLING)
    with transaction.atomic():
        fresh = actions_answer.lock(user, conversation)
        if not fresh.messages.filter(pk=message.pk, calling_since__isnull=False).update(calling_since=None):
            raise Http404("There is nothing here.")
        actions_answer.check_room(user, fresh, request.model)
        return actions_answer.add_answer(
            user, fresh, path[-1], request, actions_answer.MODEL_SAMPLING, is_shown=fresh.leaf_id == message.pk
        )


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
) -> actions_answer.Sent:
    """Another answer to a question."""
    actions_answer.take_request(user)
    path = access.path_of(conversation, question_id)
    turns = generation_request.messages_for(path, conversation.system_prompt)
    if instruction:
        turns = (*turns[:-1], msgspec.structs.replace(turns[-1], content=f"{turns[-1].content}\n\n{instruction}"))
    request = actions_answer.request_of(conversation, turns, sampling, opening)
    with transaction.atomic():
        fresh = actions_answer.lock(user, conversation)
        actions_answer.check_there(fresh, question_id)
        actions_answer.check_room(user, fresh, request.model)
        return actions_answer.add_answer(user, fresh, path[-1], request, sampling)
