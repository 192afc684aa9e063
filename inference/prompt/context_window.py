"""Which turns of a conversation fit. Owns that policy alone; counts with whatever function it is given.

A turn is a user message with all that follows it up to the next one. The system message and the newest turn always
stay; the oldest whole turns go first. Called by the builder.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from inference.errors import PromptTooLong
from inference.messages.generation import ChatMessage, Role

DEFAULT_REPLY_TOKENS = 1024  # room kept for the reply when the request names no limit
MIN_REPLY_TOKENS = 64  # less than this is no answer: the prompt is refused instead


@dataclass(frozen=True)
class Fitted:
    messages: tuple[ChatMessage, ...]
    num_dropped: int  # messages left out
    num_tokens: int


def fit(
    messages: Sequence[ChatMessage],
    *,
    count: Callable[[Sequence[ChatMessage]], int],
    context_tokens: int,
    max_tokens: int | None = None,
) -> Fitted:
    """The newest part of `messages` whose prompt leaves room for the reply.

    Room is `max_tokens` or 1,024 tokens, but never more than half the context; when the newest turn alone would not
    leave that much, 64 tokens are enough. What is dropped grows in steps of a quarter of the prompt's room, so that
    the beginning stays the same for many turns and the prefix cache keeps its worth.

    Raises:
        PromptTooLong: system message and newest turn alone are too long.
    """
    messages = tuple(messages)
    reply = min(max_tokens or DEFAULT_REPLY_TOKENS, context_tokens // 2)
    room = context_tokens - reply
    full = count(messages)
    if full <= room:
        return Fitted(messages, 0, full)
    head = 1 if messages and messages[0].role is Role.SYSTEM else 0
    starts = [i for i in range(head, len(messages)) if messages[i].role is Role.USER and i > head]
    options = [messages[:head] + messages[start:] for start in starts]
    least = count(options[-1]) if options else full
    if least > room:
        limit = context_tokens - min(MIN_REPLY_TOKENS, reply)
        if least > limit:
            raise PromptTooLong(prompt_tokens=least, limit_tokens=limit, context_tokens=context_tokens)
        kept = options[-1] if options else messages
        return Fitted(kept, len(messages) - len(kept), least)
    step = max(1, room // 4)
    goal = max(least, full - -(-(full - room) // step) * step)
    index = bisect.bisect_left(options, -goal, key=lambda option: -count(option))
    kept = options[min(index, len(options) - 1)]
    return Fitted(kept, len(messages) - len(kept), count(kept))
