"""Turns rows into the typed request that a worker can answer.

Owns which turns the model sees: failed and empty answers are left out, the text of stopped ones is kept, reasoning is
never shown to it again. The request is frozen as JSON on the generation's row, so that the sweeper can enter it afresh
whatever happens to Redis. Reads rows, writes none. `chatsite.chat.inference` hands it on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

import msgspec
import structlog
from django.conf import settings

from chatsite.accounts.models import new_id
from chatsite.chat import inference
from chatsite.chat.errors import InvalidSettings, PromptTooLong
from chatsite.chat.files import extract
from chatsite.chat.generation import tool_calls
from chatsite.chat.models import Attachment, Conversation, Generation, Message
from chatsite.chat.tools import catalog
from inference import errors
from inference.client import InferenceClient
from inference.messages.generation import ChatMessage, GenerationRequest, Opening, Role, SamplingParams, ToolCall
from inference.messages.serialization import decode

log = structlog.get_logger(__name__)


MAX_ROUNDS = 6  # of calls for one question; after them the model must answer


def messages_for(path: Iterable[Message], system_prompt: str = "") -> tuple[ChatMessage, ...]:
    """What the model reads of a path whose messages carry their generations."""
    turns = [ChatMessage(role=Role.SYSTEM, content=system_prompt)] if system_prompt.strip() else []
    kept = [message for message in path if is_for_the_model(message)]
    files = _files_of(kept)
    for message in kept:
        turns += turns_of(message, "".join(files.get(message.pk, ())))
    return tuple(turns)


def turns_of(message: Message, files: str = "") -> list[ChatMessage]:
    """One message as the model reads it: an answer that called tools is followed by their results."""
    made_calls = tool_calls.of(message)
    made = tuple(ToolCall(call.id, call.name, call.arguments) for call in made_calls)
    said = ChatMessage(role=Role(message.role), content=files + message.content, tool_calls=made)
    results = [ChatMessage(role=Role.TOOL, content=call.result or "", tool_call_id=call.id) for call in made_calls]
    return [said, *results]


def is_for_the_model(message: Message) -> bool:
    """Whether it is part of what the model reads; `message` carries its generation."""
    if message.calls and any(call.result is None for call in tool_calls.of(message)):
        return False
    if not message.content.strip() and not message.calls:
        return False
    if message.role == Message.Role.USER or message.edited_at:
        return True  # what a person wrote
    generation = getattr(message, "generation", None)
    return generation is None or generation.status in (Generation.Status.DONE, Generation.Status.STOPPED)


def typed_with_files(text: str, files: Iterable[Attachment]) -> str:
    """What the model reads of a message: its files, each named and fenced, in front of what was typed."""
    return "".join((*(extract.section(file.name, file.text) + "\n" for file in files), text))


def tokens_of(text: str, model: str) -> int | None:
    """How many tokens `text` is to this model; None while nobody can tell."""

    def count(client: InferenceClient, content: str) -> int:
        turns = (ChatMessage(role=Role.USER, content=content),)
        request = GenerationRequest(id=new_id(), model=model, user_key="", messages=turns)
        try:
            return client.check_prompt(request).num_tokens
        except errors.PromptTooLong as error:
            return error.prompt_tokens

    try:
        frame = inference.unless_away(lambda client: count(client, "."))
        return max(1, inference.unless_away(lambda client: count(client, "." + text)) - frame)
    except (errors.InvalidRequest, errors.ModelNotServed, errors.StoreUnavailable):
        return None


def sampling_of(conversation: Conversation) -> SamplingParams:
    """What its owner has set for the conversation; not checked."""
    return SamplingParams(
        temperature=conversation.temperature,
        top_p=conversation.top_p,
        max_tokens=conversation.max_tokens,
        thinking_budget=conversation.thinking_budget,
    )


def request_for(
    generation_id: UUID,
    conversation: Conversation,
    messages: tuple[ChatMessage, ...],
    *,
    model: str,
    sampling: SamplingParams,
    opening: Opening | None = None,
) -> GenerationRequest:
    """The request of one answer, with its tokens counted where a live worker's kit is known.

    `sampling` goes before the conversation's own, where both set a value.

    Raises:
        PromptTooLong: it does not fit that model's context; both numbers are in it.
        InvalidSettings: a sampling value is out of range, or the model's template refuses these messages.
    """
    tools = catalog.specs() if conversation.tools and opening is None else ()
    sampling = sampling.over(sampling_of(conversation))
    cap = settings.SMOLFLEET.max_completion_tokens
    capped = SamplingParams(max_tokens=min(sampling.max_tokens or cap, cap)).over(sampling)
    request = GenerationRequest(
        id=generation_id,
        model=model,
        user_key=str(conversation.owner_id),
        conversation_key=str(conversation.pk),
        messages=messages,
        # is_system_shared stays False: the only system prompts there are, are people's own.
        thinking=conversation.thinking,
        tools=tools,
        tool_choice="auto" if num_rounds(messages) < MAX_ROUNDS else "none",
        sampling=capped,
        opening=opening,
        date=conversation.prompt_date.isoformat(),
    )
    try:
        sampling.check()
        checked = inference.unless_away(lambda client: client.check_prompt(request))
    except errors.PromptTooLong as error:
        raise PromptTooLong(prompt_tokens=error.prompt_tokens, limit_tokens=error.limit_tokens) from error
    except errors.InvalidRequest as error:
        raise InvalidSettings(error.message, param=error.param) from error
    except (errors.ModelNotServed, errors.StoreUnavailable):
        return request  # nobody to ask; it waits, and the worker counts again
    return msgspec.structs.replace(request, prompt_tokens=checked.num_tokens)


def num_rounds(turns: Sequence[ChatMessage]) -> int:
    """How often the model has called tools since the last question."""
    rounds = 0
    for turn in reversed(turns):
        if turn.role is Role.USER:
            break
        rounds += bool(turn.tool_calls)
    return rounds


def frozen_request_of(generation: Generation) -> GenerationRequest:
    """The request as it was when the message was sent. Raises InvalidRequest when the row holds none."""
    return decode(generation.request, GenerationRequest)


def _files_of(path: list[Message]) -> dict[UUID, list[str]]:
    """The sections of the files on a path, by message, in one query."""
    questions = [message.pk for message in path if message.role == Message.Role.USER]
    sections: dict[UUID, list[str]] = {}
    rows = Attachment.objects.filter(message__in=questions).order_by("pk")
    for message_id, name, text in rows.values_list("message_id", "name", "text") if questions else ():
        sections.setdefault(message_id, []).append(extract.section(name, text) + "\n")
    return sections
