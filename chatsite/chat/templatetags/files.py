"""The files that wait above a message box, for whichever view draws the box, and the names of their encodings."""

from __future__ import annotations

from typing import Any

from django import template

from chatsite.chat.actions import attachments
from chatsite.chat.files import encoding
from chatsite.chat.models import Attachment, Conversation

register = template.Library()


@register.simple_tag(takes_context=True)
def draft_files(context: dict[str, Any], conversation: Conversation | None) -> list[Attachment]:
    user = context["request"].user
    return attachments.drafts_of(user, conversation or None)


@register.simple_tag
def encodings() -> dict[str, str]:
    """What a person may choose: codec -> name."""
    return encoding.NAMES


@register.filter
def encoding_name(file: Attachment) -> str:
    return encoding.NAMES.get(file.codec, file.codec)
