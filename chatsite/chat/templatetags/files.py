"""The files that wait above a message box, for whichever view draws the box."""

from __future__ import annotations

from typing import Any

from django import template

from chatsite.chat import attachments
from chatsite.chat.documents import LATIN_1
from chatsite.chat.models import Attachment, Conversation

register = template.Library()


@register.simple_tag(takes_context=True)
def draft_files(context: dict[str, Any], conversation: Conversation | None) -> list[Attachment]:
    user = context["request"].user
    return attachments.drafts_of(user, conversation or None)


@register.filter
def is_latin(file: Attachment) -> bool:
    """Whether its encoding was only guessed."""
    return file.media_type == LATIN_1
