"""One completion of `/v1`: admitted or refused, followed to its end, abandoned when nobody reads it any more.

Owns the rules of admission and what an event log means to an API client. Knows nothing of HTTP. `admit` and `abandon`
are sync, for a thread that may use the database; `Following` lives on the event loop. Called by the consumers.

The answer is kept nowhere: when the log of an answer that had begun is lost, the client is told and asks again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from enum import Enum, auto
from uuid import UUID

import msgspec
from django.conf import settings
from django.db import transaction
from django.utils import timezone

from chatsite.accounts.models import ApiKey, User, new_id
from chatsite.accounts.time_zones import zone_of
from chatsite.api import errors
from chatsite.api.schemas import ChatCompletionRequest
from chatsite.chat.actions import send
from chatsite.chat.generation import quota
from chatsite.chat.inference import inference_client
from chatsite.chat.models import Generation
from chatsite.chat.queries import access
from chatsite.chat.streams.cancel import end_tasks
from chatsite.chat.streams.hub import Fresh, Gone, Reset, hub
from inference.errors import StoreUnavailable
from inference.messages.cards import WorkerCard
from inference.messages.generation import (
    Delta,
    ErrorFacts,
    Event,
    EventKind,
    Finish,
    FinishReason,
    GenerationRequest,
    TokenLogprob,
)
from inference.messages.serialization import encode


@dataclass(frozen=True)
class Completion:
    """An admitted request: its generation and what every piece of the response repeats.

    `warnings` are sentences about what could not be done just as it was asked.
    """

    generation_id: UUID
    model: str
    created: int  # Unix seconds
    warnings: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        return f"chatcmpl-{self.generation_id.hex}"


def admit(user: User, body: ChatCompletionRequest, *, key: ApiKey | None = None) -> Completion:
    """Check `body`, write its generation and submit it; `key` is the one that asked.

    Raises:
        InvalidRequest, PromptTooLong: it can never work.
        ModelUnknown: no worker serves that model.
        Busy: the user has as many answers under way as allowed.
        QuotaExceeded: not enough tokens are left.
        Unavailable, StoreUnavailable, ModelNotServed: not just now; nothing of it will run.
    """
    site = settings.SMOLFLEET
    body.check(max_completion_tokens=site.max_completion_tokens)
    client = inference_client()
    _expect_served(body.model, client.workers(), site.default_model)
    now = timezone.now()
    user_key = str(user.pk)
    choice = body.choice
    sampling, warnings = client.held(body.sampling(site.max_completion_tokens), is_strict=body.is_schema_strict)
    request = GenerationRequest(
        id=new_id(),
        model=body.model,
        user_key=user_key,
        conversation_key=body.conversation_key(user_key),
        messages=body.chat_messages(),
        thinking=body.wants_thinking,
        tools=body.tool_specs(),
        tool_choice=choice.tool_choice,
        required_tool=choice.required_tool,
        is_parallel=body.parallel_tool_calls is not False,
        tool_dialect=body.tool_dialect,
        sampling=sampling,
        date=now.astimezone(zone_of(user)).date().isoformat(),
    )
    checked = client.check_prompt(request)
    warnings += checked.warnings
    if checked.num_dropped_messages:
        warnings += (f"The oldest {checked.num_dropped_messages} messages were left out: the context has no room.",)
    request = msgspec.structs.replace(request, prompt_tokens=checked.num_tokens)
    request = _write_row(user, request, key, is_cap_asked=body.is_cap_asked(site.max_completion_tokens))
    try:
        client.submit(request)
    except StoreUnavailable:
        # The refusal is said at once, so the sweeper must not enter it later: asked to stop, it ends there.
        Generation.objects.filter(pk=request.id).update(stop_requested=True)
        raise
    return Completion(request.id, request.model, int(now.timestamp()), warnings)


def _expect_served(model: str, cards: list[WorkerCard], default_model: str) -> None:
    if any(card.model.name == model and card.state == "ready" and not card.next_model for card in cards):
        return
    if not cards or model == default_model or any(card.model.name == model for card in cards):
        raise errors.no_worker()  # a model that belongs here, but nobody has it ready
    raise errors.ModelUnknown(model)


def _write_row(user: User, request: GenerationRequest, key: ApiKey | None, *, is_cap_asked: bool) -> GenerationRequest:
    """Returns the request as it may be answered."""
    site = settings.SMOLFLEET
    with transaction.atomic():
        # One at a time per user: the count below is then no guess. `no_key` leaves foreign key checks alone.
        User.objects.select_for_update(no_key=True).only("pk").get(pk=user.pk)
        active = Generation.objects.filter(status=Generation.Status.ACTIVE)
        if active.filter(user=user, source=Generation.Source.API).count() >= site.max_active_per_key:
            raise errors.Busy(f"You have {site.max_active_per_key} requests under way, the most at one time.")
        if site.max_waiting and active.filter(model=request.model).count() >= site.max_waiting:
            raise errors.site_busy()
        request, reserved = quota.reserve(user, request, is_cap_asked=is_cap_asked)
        Generation.objects.create(
            id=request.id,
            user=user,
            api_key=key,
            source=Generation.Source.API,
            model=request.model,
            request=encode(request).decode(),
            reserved_tokens=reserved,
        )
    return request


def abandon(user: User, generation_id: UUID) -> None:
    """Nobody reads this answer any more: stop it, wherever it is. Nothing happens when it has ended."""
    generation = access.generation_of(user, generation_id)
    if generation.is_active:
        send.stop(user, generation)


def end_of(generation_id: UUID) -> Finish | None:
    """How a generation without a log ended, None while it has not. Its text is gone: even a good end failed."""
    row = Generation.objects.filter(pk=generation_id).first()
    if row is not None and row.is_active:
        return None
    if row is not None and row.status == Generation.Status.STOPPED:
        return Finish(reason=FinishReason.CANCELLED)
    facts = ErrorFacts(code="answer_lost", message="The answer was lost before it could be sent.", retryable=True)
    if row is not None and row.status == Generation.Status.FAILED:
        facts = ErrorFacts(code=row.error_code, message=row.error_message, retryable=row.is_retryable)
    return Finish(reason=FinishReason.ERROR, error=facts)


class Signal(Enum):
    """What can come instead of text and end."""

    RESTARTED = auto()  # another log began: what came before no longer counts
    LOST = auto()  # there is no log: ask `end_of`
    SILENCE = auto()  # nothing came for as long as one was ready to wait
    OVER = auto()  # recorded: nothing will follow


@dataclass(frozen=True)
class Text:
    """New text, and what the model thought of the tokens of content, where that was asked for."""

    delta: Delta
    logprobs: tuple[TokenLogprob, ...] = ()


News = Text | Finish | Signal


class Following:
    """The news of one generation, one after the other; being told of silence loses none."""

    def __init__(self, generation_id: UUID) -> None:
        self._news = _news(generation_id)
        self._next: asyncio.Task[News] | None = None

    async def next(self, *, seconds: float) -> News:
        """The next piece of news, `SILENCE` when none comes for so long, `OVER` at the end and ever after."""
        if self._next is None:
            self._next = asyncio.create_task(self._take())
        done, _ = await asyncio.wait({self._next}, timeout=seconds)
        if not done:
            return Signal.SILENCE
        task, self._next = self._next, None
        return task.result()

    async def close(self) -> None:
        """Leave the hub."""
        await end_tasks(self._next)
        await self._news.aclose()

    async def _take(self) -> News:
        return await anext(self._news, Signal.OVER)


async def _news(generation_id: UUID) -> AsyncGenerator[News]:
    async with contextlib.aclosing(hub().follow(generation_id)) as items:
        async for item in items:
            match item:
                case Reset():
                    yield Signal.RESTARTED
                case Gone():
                    yield Signal.LOST
                case Fresh(event=event):
                    for text in _texts(event):
                        yield text
                    if event.finish is not None:
                        yield event.finish
                    if event.kind is EventKind.RECORDED:
                        return


def _texts(event: Event) -> list[Text]:
    """The event's logprobs go with its first content; with none of it visible yet, they go alone."""
    texts = [Text(delta) for delta in event.deltas]
    if event.logprobs:
        at = next((i for i, text in enumerate(texts) if text.delta.kind == "content"), len(texts))
        delta = texts[at].delta if at < len(texts) else Delta("content", "")
        texts[at : at + 1] = [Text(delta, event.logprobs)]
    return texts
