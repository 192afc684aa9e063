"""What a worker reports of an answer, within what that answer can have come to.

GPU workers run elsewhere and may be wrong, or not ours at all. Nothing of a report reaches a row, a quota or a page
beyond the request's cap, the tokens that its log shows and the text these can make. Called by `record` and `costs`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec
import structlog
from django.conf import settings

from chatsite.chat.generation import request as generation_request
from chatsite.chat.models import Generation
from chatsite.chat.text import clean
from inference.coordination.log_view import Log
from inference.errors import InvalidRequest
from inference.messages.generation import ErrorFacts, Finish, GenerationRequest, ToolCall, Usage

log = structlog.get_logger(__name__)

MAX_TOKEN_CHARS = 512  # of the longest token of any vocabulary
TEMPLATE_TOKENS = 8_192  # that a template adds of its own, at most
MAX_CALLS = 64  # kept; how many are made is decided elsewhere
MAX_NAME_CHARS = 200
MAX_ERROR_CHARS = 1_000


@dataclass(frozen=True)
class Report:
    """How an answer ended, and its text, fit for rows and pages."""

    finish: Finish
    content: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]


def report_of(generation: Generation, found: Log, finish: Finish) -> Report:
    """What `found` and `finish` say, as far as it can be true."""
    most = _Bounds(generation, found)
    believed = msgspec.structs.replace(
        finish,
        usage=most.usage(finish.usage),
        error=_error(finish.error),
        worker=clean(finish.worker)[:MAX_NAME_CHARS],
        num_dropped_messages=_within(finish.num_dropped_messages, most.num_messages),
        decode_seconds=_seconds(finish.decode_seconds),
    )
    if believed != finish:
        log.warning("report beyond what can be", generation_id=str(generation.pk), worker=believed.worker)
    return Report(
        believed,
        clean(found.text("content"))[: most.num_chars],
        clean(found.text("reasoning"))[: most.num_chars],
        tuple(_call(call, most.num_chars) for call in found.tool_calls[:MAX_CALLS]),
    )


def usage_of(generation: Generation, found: Log, usage: Usage) -> Usage:
    """The tokens of `usage` that this answer can have cost."""
    return _Bounds(generation, found).usage(usage)


class _Bounds:
    """Of one answer. The row of a temporary chat has no request; there what was reserved is all that is known."""

    def __init__(self, generation: Generation, found: Log) -> None:
        request = _request_of(generation)
        site_cap = settings.SMOLFLEET.max_completion_tokens
        cap = (request.sampling.max_tokens if request else min(generation.reserved_tokens, site_cap)) or site_cap
        self._completion = min(cap, sum(len(event.tokens) for event in found.events))
        if request is None:
            self._prompt = generation.reserved_tokens
        else:  # not counted beforehand: no token is shorter than a byte
            self._prompt = request.prompt_tokens or len(generation.request.encode()) + TEMPLATE_TOKENS
        opening = request.opening if request else None
        given = len(opening.content) + len(opening.reasoning) if opening else 0
        self.num_chars = (cap + 1) * MAX_TOKEN_CHARS + given
        self.num_messages = len(request.messages) if request else 0

    def usage(self, said: Usage) -> Usage:
        prompt = _within(said.prompt_tokens, self._prompt)
        completion = _within(said.completion_tokens, self._completion)
        return Usage(
            prompt_tokens=prompt,
            cached_tokens=_within(said.cached_tokens, prompt),
            completion_tokens=completion,
            reasoning_tokens=_within(said.reasoning_tokens, completion),
        )


def _request_of(generation: Generation) -> GenerationRequest | None:
    try:
        return generation_request.frozen_request_of(generation)
    except InvalidRequest:
        return None


def _within(number: int, most: int) -> int:
    return max(0, min(number, most))


def _seconds(said: float) -> float:
    return max(0.0, min(said, settings.INFERENCE.generation_seconds)) if math.isfinite(said) else 0.0


def _error(said: ErrorFacts | None) -> ErrorFacts | None:
    if said is None:
        return None
    return ErrorFacts(
        code=clean(said.code)[:64], message=clean(said.message)[:MAX_ERROR_CHARS], retryable=said.retryable
    )


def _call(call: ToolCall, num_chars: int) -> ToolCall:
    return ToolCall(
        clean(call.id)[:MAX_NAME_CHARS], clean(call.name)[:MAX_NAME_CHARS], clean(call.arguments)[:num_chars]
    )
