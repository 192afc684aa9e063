"""Rows of a conversation -> its record. An answer still being written is left out, and so is what follows it."""

from __future__ import annotations

import heapq
from uuid import UUID

from chatsite.chat.generation import tool_calls
from chatsite.chat.models import Conversation, Feedback, Generation, Message
from chatsite.transfer.records import (
    AnswerRecord,
    CallRecord,
    ConversationRecord,
    FeedbackRecord,
    FileRecord,
    MessageRecord,
)


def record_of(conversation: Conversation) -> ConversationRecord:
    """Everything of a conversation that was fetched through `access`."""
    rows = conversation.messages.select_related("generation", "feedback").prefetch_related("attachments")
    children: dict[UUID | None, list[Message]] = {}
    for row in rows.order_by("pk"):
        children.setdefault(row.parent_id, []).append(row)
    messages: list[MessageRecord] = []
    places: dict[UUID, int] = {}
    waiting = [(row.pk, row) for row in children.get(None, ())]  # the eldest whose parent is written comes next
    while waiting:
        _pk, row = heapq.heappop(waiting)
        generation = getattr(row, "generation", None)
        if generation is not None and generation.is_active:
            continue
        places[row.pk] = len(messages)
        messages.append(_message(row, generation, places[row.parent_id] if row.parent_id else None))
        for child in children.get(row.pk, ()):
            heapq.heappush(waiting, (child.pk, child))
    return ConversationRecord(
        id=str(conversation.pk),
        title=conversation.title,
        is_title_own=conversation.is_title_own,
        model=conversation.model,
        system_prompt=conversation.system_prompt,
        thinking=conversation.thinking,
        tools=conversation.tools,
        thinking_budget=conversation.thinking_budget,
        temperature=conversation.temperature,
        top_p=conversation.top_p,
        max_tokens=conversation.max_tokens,
        prompt_date=conversation.prompt_date,
        tags=sorted(tag.name for tag in conversation.tags.all()),
        pinned_at=conversation.pinned_at,
        archived_at=conversation.archived_at,
        created_at=conversation.created_at,
        updated_at=conversation.updated_at,
        messages=messages,
        leaf=_leaf(conversation, places),
    )


def _leaf(conversation: Conversation, places: dict[UUID, int]) -> int | None:
    if conversation.leaf is None:
        return None
    before = places.get(conversation.leaf.parent_id) if conversation.leaf.parent_id else None
    return places.get(conversation.leaf.pk, before)  # the answer being written is left out


def _message(row: Message, generation: Generation | None, parent: int | None) -> MessageRecord:
    feedback: Feedback | None = getattr(row, "feedback", None)
    return MessageRecord(
        role="user" if row.role == Message.Role.USER else "assistant",
        content=row.content,
        parent=parent,
        reasoning=row.reasoning,
        created_at=row.created_at,
        edited_at=row.edited_at,
        files=[
            FileRecord(
                name=file.name,
                media_type=file.media_type,
                text=file.text,
                num_bytes=file.num_bytes,
                num_tokens=file.num_tokens,
            )
            for file in sorted(row.attachments.all(), key=lambda file: file.pk)
        ],
        calls=[
            CallRecord(
                id=call.id,
                name=call.name,
                arguments=call.arguments,
                result=call.result or "",
                has_failed=call.has_failed,
                seconds=call.seconds,
            )
            for call in tool_calls.of(row)
        ],
        feedback=FeedbackRecord(
            rating=1 if feedback.rating > 0 else -1, reason=feedback.reason, comment=feedback.comment
        )
        if feedback
        else None,
        answer=_answer(generation) if generation else None,
    )


def _answer(row: Generation) -> AnswerRecord:
    return AnswerRecord(
        model=row.model,
        status=row.status,  # type: ignore[arg-type]  # not active: see above
        finish_reason=row.finish_reason,
        cut=row.cut,
        error_code=row.error_code,
        error_message=row.error_message,
        is_retryable=row.is_retryable,
        worker=row.worker,
        prompt_tokens=row.prompt_tokens,
        cached_tokens=row.cached_tokens,
        completion_tokens=row.completion_tokens,
        reasoning_tokens=row.reasoning_tokens,
        num_dropped=row.num_dropped,
        decode_seconds=row.decode_seconds,
        created_at=row.created_at,
        ended_at=row.ended_at,
    )
