"""Better titles: after its first answer a conversation is named by the model, when nobody else wants it.

Owns what is asked and which answers are good enough for a title; until then, and where none is, the first words stand.
A title of the owner's own is never touched. Called by `record`, in the site worker.
"""

from __future__ import annotations

import re
from uuid import UUID

import structlog
from django.conf import settings
from django.db import transaction

from chatsite.accounts.models import new_id
from chatsite.chat import inference
from chatsite.chat.models import TITLE_CHARS, Conversation, Generation, Message
from chatsite.chat.text import QUOTE_COMMAND
from inference.messages.generation import ChatMessage, GenerationRequest, Role, SamplingParams
from inference.messages.serialization import encode

log = structlog.get_logger(__name__)

PRIORITY = 20  # each level is half a minute of waiting: ten minutes, and no person's message is ever behind it
MAX_TOKENS = 24
MAX_QUESTION_CHARS, MAX_ANSWER_CHARS = 1_500, 500
MAX_WORDS, MAX_CHARS = 12, 80
TASK = "Write a title of at most six words for this conversation. Answer with the title alone."

_DECORATION = re.compile(r"^(?:[\s#*_>\"'“”„«»`-]|title\s*:)+|[\s*_\"'“”«»`.]+$", re.IGNORECASE)


def ask_for(generation_id: UUID) -> None:
    """Ask for a title if that generation wrote a conversation's first answer and the site wants titles."""
    if not settings.SMOLFLEET.model_titles:
        return
    first = (
        Generation.objects.filter(
            pk=generation_id,
            source=Generation.Source.CHAT,
            status=Generation.Status.DONE,
            message__calls__isnull=True,
            message__conversation__is_title_own=False,
            message__conversation__title_generations=None,
        )
        .select_related("message__parent", "message__conversation")
        .first()
    )
    if first is None or first.message is None or first.message.parent is None:
        return
    question, answer = first.message.parent, first.message
    while question.role == Message.Role.ASSISTANT and question.parent is not None:
        question = question.parent  # answers between them called tools
    if question.parent_id is not None:
        return
    if question.content == QUOTE_COMMAND or not answer.content.strip():
        return
    if not any(card.name == first.model for card in inference.served_models() or ()):
        return
    request = _request(first, question, answer)
    with transaction.atomic():
        held = Conversation.objects.select_for_update(no_key=True).filter(pk=answer.conversation_id).first()
        if held is None or held.is_title_own or held.title_generations.exists():
            return
        Generation.objects.create(
            pk=request.id,
            user_id=first.user_id,
            conversation=held,
            source=Generation.Source.TITLE,
            model=first.model,
            request=encode(request).decode(),
        )
    inference.submit(request)


def take(generation: Generation, content: str) -> bool:
    """Name the conversation of an ended title's generation by `content`. False where that is no title, or unwanted."""
    title = title_from(content)
    if not title or generation.conversation_id is None or generation.status != Generation.Status.DONE:
        return False
    unnamed = Conversation.objects.filter(pk=generation.conversation_id, is_title_own=False)
    return bool(unnamed.update(title=title))


def title_from(content: str) -> str:
    """The title that a model's answer holds, without its trimmings; "" where it is not one."""
    line = next((line for line in content.splitlines() if line.strip()), "")
    title = _DECORATION.sub("", " ".join(line.split()))
    is_title = 0 < len(title) <= min(MAX_CHARS, TITLE_CHARS) and len(title.split()) <= MAX_WORDS
    return title if is_title and "<" not in title and any(c.isalnum() for c in title) else ""


def _request(generation: Generation, question: Message, answer: Message) -> GenerationRequest:
    said = f"User: {question.content[:MAX_QUESTION_CHARS]}\n\nAssistant: {answer.content[:MAX_ANSWER_CHARS]}"
    return GenerationRequest(
        id=new_id(),
        model=generation.model,
        user_key=str(generation.user_id),
        messages=(ChatMessage(role=Role.USER, content=f"{TASK}\n\n{said}"),),
        thinking=False,
        sampling=SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS),
        priority=PRIORITY,
        date=answer.conversation.prompt_date.isoformat(),
    )
