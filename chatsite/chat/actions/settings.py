"""How a conversation's answers are to be written: model, instructions, thinking and sampling, at any time.

Owns which values are taken. What is not given stays as it is, and None is the model's own; nothing is taken over from
another conversation. The next answer follows what is written here; one that is being written keeps the request it was
sent with. Called by `actions` for a conversation that begins and by views for one that is there; synchronous.
"""

from __future__ import annotations

from typing import TypedDict, Unpack

from django.conf import settings

from chatsite.accounts.models import User
from chatsite.chat.errors import InstructionsTooLong, InvalidSettings, ModelUnknown
from chatsite.chat.generation import model_choice, request
from chatsite.chat.models import Conversation
from chatsite.chat.queries import access
from chatsite.chat.text import clean_typed
from inference.errors import InvalidRequest


class Tuning(TypedDict, total=False):
    """`model` "" is the site's choice; `tools`: answers may call those of the site. Temperature and the rest as in
    `SamplingParams`; budget and length in tokens."""

    model: str
    system_prompt: str
    thinking: bool | None
    tools: bool
    thinking_budget: int | None
    temperature: float | None
    top_p: float | None
    max_tokens: int | None


def checked(**tuning: Unpack[Tuning]) -> Tuning:
    """The same, cleaned, for a conversation that begins.

    Raises:
        ModelUnknown: the site neither serves nor names this model.
        InstructionsTooLong: the instructions have more characters than a message may have.
        InvalidSettings: a number is out of range; the sentence says which.
    """
    if "model" in tuning:
        check_model(tuning["model"])
    if "system_prompt" in tuning:
        tuning["system_prompt"] = _instructions(tuning["system_prompt"])
    try:
        request.sampling_of(Conversation(**tuning)).check()
    except InvalidRequest as error:
        raise InvalidSettings(error.message, param=error.param) from error
    return tuning


def tune(user: User, conversation: Conversation, **tuning: Unpack[Tuning]) -> Conversation:
    """Change what is given. The model it has may stay, also while nobody serves it.

    Raises as `checked`, and:
        Http404: the conversation is not this user's, or no longer there.
    """
    conversation = access.conversation_of(user, conversation.pk)
    if tuning.get("model") == conversation.model:
        del tuning["model"]
    for name, value in checked(**tuning).items():
        setattr(conversation, name, value)
    conversation.save(update_fields=list(tuning))
    return conversation


def check_model(model: str) -> None:
    """Raises ModelUnknown where the site neither serves nor names this model; "" is its own choice."""
    if model and not model_choice.is_known(model):
        raise ModelUnknown(model)


def _instructions(typed: str) -> str:
    text = clean_typed(typed).strip()
    max_chars = settings.SMOLFLEET.max_message_chars
    if len(text) > max_chars:
        raise InstructionsTooLong(num_chars=len(text), max_chars=max_chars)
    return text
