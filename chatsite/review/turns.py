"""A transcript as the page shows it: its messages, by the chat's own renderer, and a word on how an answer ended."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass, replace
from uuid import UUID

from django.utils.safestring import SafeString

from chatsite.chat.generation import tool_calls
from chatsite.chat.models import Attachment, Feedback, Generation, Message
from chatsite.chat.queries import access
from chatsite.chat.rendering import message as rendering_message
from chatsite.chat.rendering import stream
from chatsite.chat.tools import search_chats
from chatsite.review.actions import Transcript
from chatsite.review.forms import OutcomeForm

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
    calls: tuple[rendering_message.ShownCall, ...] = ()

    @property
    def outcome_form(self) -> OutcomeForm | None:
        """For a reviewer to say what was made of the report; None where nothing is reported."""
        if self.feedback is None or not self.feedback.is_reported:
            return None
        return OutcomeForm(auto_id=f"report-{self.feedback.pk}-%s")


def turns_of(transcript: Transcript) -> Iterator[Turn]:
    """Its messages, oldest first, those of other branches marked; opinions as far as they may be read."""
    shown = set(access.path_ids_of(transcript.conversation))
    for message in transcript.messages:
        is_answer = message.role == Message.Role.ASSISTANT
        yield Turn(
            id=message.pk,
            is_answer=is_answer,
            text=message.content,
            html=stream.render(message.content, stream.scope_of(message.pk)) if is_answer else SafeString(""),
            reasoning=message.reasoning,
            state=_state_of(message) if is_answer else "",
            is_other_branch=message.pk not in shown,
            created_at=message.created_at,
            feedback=_feedback_of(message, transcript),
            files=tuple(message.attachments.all()),
            calls=tuple(_calls_of(message, transcript)),
        )


def _calls_of(message: Message, transcript: Transcript) -> Iterator[rendering_message.ShownCall]:
    """Calls of tools. What a search found in other conversations is no part of what was reported."""
    for call, shown in zip(tool_calls.of(message), rendering_message.shown_calls(message), strict=True):
        is_from_elsewhere = call.name == search_chats.TOOL.name and not transcript.is_whole
        yield replace(shown, result="(left out)") if is_from_elsewhere else shown


def _feedback_of(message: Message, transcript: Transcript) -> Feedback | None:
    found: Feedback | None = getattr(message, "feedback", None)
    return found if found is not None and (transcript.is_whole or found.is_reported) else None


def _state_of(message: Message) -> str:
    generation = getattr(message, "generation", None)
    edited = "Its owner changed the text; it is not what the model wrote." if message.edited_at else ""
    if generation is None:
        return edited
    words = STATES.get(generation.status, "")
    if generation.status == Generation.Status.FAILED:
        words = f"{words} {generation.error_message}"
    return f"{words} {edited}".strip()
