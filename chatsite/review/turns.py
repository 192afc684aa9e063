"""A transcript as the page shows it: every message, by the chat's own renderer, and a word on how an answer ended."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

from django.utils.safestring import SafeString

from chatsite.chat import access, markdown
from chatsite.chat.models import Attachment, Feedback, Generation, Message
from chatsite.review.actions import Transcript

STATES = {
    Generation.Status.ACTIVE: "Still being written.",
    Generation.Status.STOPPED: "Stopped.",
    Generation.Status.FAILED: "Failed:",
}


@dataclass(frozen=True)
class Turn:
    """`html` is the answer; what a person typed, and what the model thought, is shown as it is."""

    id: UUID
    is_answer: bool
    text: str
    html: SafeString
    reasoning: str
    state: str
    is_other_branch: bool  # the owner does not see it just now: another answer, or an earlier question, took its place
    created_at: datetime.datetime
    feedback: Feedback | None = None
    files: tuple[Attachment, ...] = ()


def turns_of(transcript: Transcript) -> Iterator[Turn]:
    """All messages, oldest first, those of other branches marked."""
    shown = {message.pk for message in access.path_of(transcript.conversation)}
    for message in transcript.messages:
        is_answer = message.role == Message.Role.ASSISTANT
        yield Turn(
            id=message.pk,
            is_answer=is_answer,
            text=message.content,
            html=markdown.render(message.content, markdown.scope_of(message.pk)) if is_answer else SafeString(""),
            reasoning=message.reasoning,
            state=_state_of(message) if is_answer else "",
            is_other_branch=message.pk not in shown,
            created_at=message.created_at,
            feedback=getattr(message, "feedback", None),
            files=tuple(message.attachments.all()),
        )


def _state_of(message: Message) -> str:
    generation = getattr(message, "generation", None)
    edited = "Its owner changed the text; it is not what the model wrote." if message.edited_at else ""
    if generation is None:
        return edited
    words = STATES.get(generation.status, "")
    if generation.status == Generation.Status.FAILED:
        words = f"{words} {generation.error_message}"
    return f"{words} {edited}".strip()
