"""What stands beside the message box: how full the model's context is, and what the site allows an answer.

Reads one row; counts nothing itself. Called by `page`.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.conf import settings

from chatsite.chat.models import Conversation, Generation
from inference.messages.cards import ModelCard

WARN_PERCENT = 80


@dataclass(frozen=True)
class Gauge:
    """Tokens that the next message finds taken, of what the model can see at once."""

    used_tokens: int
    context_tokens: int

    @property
    def percent(self) -> int:
        return min(100, 100 * self.used_tokens // self.context_tokens)

    @property
    def is_warning(self) -> bool:
        return self.percent >= WARN_PERCENT


def gauge_of(conversation: Conversation, model: ModelCard | None) -> Gauge | None:
    """From the last answer's own count, without its reasoning, which is not shown again. None: nobody can tell."""
    if model is None:
        return None
    last = Generation.objects.filter(message=conversation.leaf_id, prompt_tokens__gt=0).first()
    if last is None:
        return None
    used = last.prompt_tokens + last.completion_tokens - last.reasoning_tokens
    return Gauge(used, model.context_tokens)


def limits() -> dict[str, object]:
    return {"max_completion_tokens": settings.SMOLFLEET.max_completion_tokens}
