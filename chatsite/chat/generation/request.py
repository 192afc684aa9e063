"""Turns rows into the typed request a worker can answer, and hands it to `inference.client`.

Owns which turns the model sees: failed and empty answers are left out, the text of stopped ones is kept, reasoning is
never shown to it again. The request is frozen as JSON on the generation's row, so that the sweeper can enter it afresh
whatever happens to Redis. Reads rows, writes none. Called by `answering` on the web's threads and by `tasks`.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar
from uuid import UUID

import msgspec
import redis
import structlog
from django.conf import settings
from django.utils import timezone

from chatsite.accounts.models import new_id
from chatsite.chat import notices
from chatsite.chat.errors import InvalidSettings, PromptTooLong
from chatsite.chat.files import extract
from chatsite.chat.generation import tool_calls
from chatsite.chat.models import Attachment, Conversation, Generation, Message
from chatsite.chat.tools import catalog
from inference import errors
from inference.client import InferenceClient
from inference.coordination.log_view import Log
from inference.messages.cards import ModelCard, WorkerCard
from inference.messages.generation import ChatMessage, GenerationRequest, Opening, Role, SamplingParams, ToolCall
from inference.messages.serialization import decode

log = structlog.get_logger(__name__)


T = TypeVar("T")

MAX_ROUNDS = 6  # of calls for one question; after them the model must answer
AWAY_SECONDS = 2.0  # after Redis could not be reached a send leaves it alone for so long; the sweeper makes up for it


class _Outage:
    """Keeps a Redis that does not answer from costing each send several timeouts, one after the other."""

    def __init__(self) -> None:
        self._client: InferenceClient | None = None
        self._until = float("-inf")

    def unless_away(self, call: Callable[[InferenceClient], T]) -> T:
        """The result of `call`. Raises StoreUnavailable, also without calling while Redis was just found away."""
        client = inference_client()
        if client is self._client and time.monotonic() < self._until:
            raise errors.StoreUnavailable("Redis could not be reached a moment ago.")
        try:
            return call(client)
        except errors.StoreUnavailable:
            self._client, self._until = client, time.monotonic() + AWAY_SECONDS
            raise


_outage = _Outage()


@functools.cache
def inference_client() -> InferenceClient:
    """This process's client; made at first use, safe for threads."""
    return InferenceClient(settings.INFERENCE)


def served_models() -> list[ModelCard] | None:
    """What live workers serve; None while Redis is away and nobody can tell."""
    try:
        return _outage.unless_away(lambda client: client.models())
    except errors.StoreUnavailable:
        return None


def live_workers() -> list[WorkerCard] | None:
    """Cards of the workers that live, by name; None while Redis is away and nobody can tell."""
    try:
        return _outage.unless_away(lambda client: client.workers())
    except errors.StoreUnavailable:
        return None


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
        frame = _outage.unless_away(lambda client: count(client, "."))
        return max(1, _outage.unless_away(lambda client: count(client, "." + text)) - frame)
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
        checked = _outage.unless_away(lambda client: client.check_prompt(request))
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


def submit(request: GenerationRequest) -> None:
    """Hand a committed request on. Redis being away is no failure: the row stands, and the sweeper enters it later."""
    try:
        _outage.unless_away(lambda client: client.submit(request))
    except errors.StoreUnavailable:
        log.warning("submit left to the sweeper", generation_id=str(request.id))


def log_of(generation_id: UUID) -> Log:
    """What has been written so far. Raises EventsExpired, StoreUnavailable, the latter at once where Redis was just
    found away."""
    return _outage.unless_away(lambda client: client.read(generation_id))


def forget(generation_id: UUID) -> None:
    """Take everything of a deleted generation out of Redis; a worker that still writes it is refused and ends.

    What cannot be reached now ends by itself: its record finds no row and forgets it.
    """
    try:
        _outage.unless_away(lambda client: client.forget(generation_id))
    except errors.StoreUnavailable:
        log.warning("log of a deleted generation left to expire", generation_id=str(generation_id))


def may_be_kept(generation: Generation) -> bool:
    """Whether Redis can still have something of it. Long after its end there is nothing to take out."""
    if generation.ended_at is None:
        return True
    age = (timezone.now() - generation.ended_at).total_seconds()
    return age < 2 * inference_client().kept_seconds  # twice: a submit may have come late


def forget_user(user_id: UUID) -> None:
    """Take out of Redis whatever else names a person whose account is gone: counters, places, cached facts."""
    try:
        _outage.unless_away(lambda client: client.forget_user(str(user_id)))
    except errors.StoreUnavailable:
        log.warning("counters of a deleted account left to expire", user_id=str(user_id))


def tell_conversation(conversation_id: UUID, generation_id: UUID) -> None:
    """Nudge open sockets of a conversation that an answer begins. A hint only: they also look for themselves."""
    _publish(notices.channel_of(conversation_id), str(generation_id))


def tell_windows(user_id: UUID, conversation_id: UUID, change: str) -> None:
    """Nudge a person's open windows that a row of their list changed. A hint only, as above."""
    _publish(notices.channel_of_list(user_id), f"{change} {conversation_id}")


def tell_streams(user_id: UUID | None) -> None:
    """Let the open streams of a person, or of everybody, look whether they may go on. A hint only, as above."""
    _publish(notices.channel_of_standing(user_id) if user_id else notices.STANDING_OF_ALL, "look")


def _publish(channel: str, hint: str) -> None:
    def publish(client: InferenceClient) -> None:
        try:
            client.redis.publish(channel, hint)
        except redis.RedisError as error:
            raise errors.StoreUnavailable("Redis could not be reached.") from error

    try:
        _outage.unless_away(publish)
    except errors.StoreUnavailable:
        log.info("nobody told", hint=hint)


def _files_of(path: list[Message]) -> dict[UUID, list[str]]:
    """The sections of the files on a path, by message, in one query."""
    questions = [message.pk for message in path if message.role == Message.Role.USER]
    sections: dict[UUID, list[str]] = {}
    rows = Attachment.objects.filter(message__in=questions).order_by("pk")
    for message_id, name, text in rows.values_list("message_id", "name", "text") if questions else ():
        sections.setdefault(message_id, []).append(extract.section(name, text) + "\n")
    return sections
