"""LibreChat's JSON export of one conversation: messages as a flat list, or (`recursive`) as a tree of `children`."""

from __future__ import annotations

from typing import Any

import msgspec
from django.utils.translation import gettext as _

from chatsite.transfer.errors import ImportRefused
from chatsite.transfer.foreign.tree import Node, Notes, messages_of, moment
from chatsite.transfer.records import ConversationRecord, FeedbackRecord


class Written(msgspec.Struct, rename="camel"):
    message_id: str
    parent_message_id: str | None = None
    text: str | None = None
    content: list[Any] | None = None
    sender: str | None = None
    is_created_by_user: bool | None = None
    created_at: str | None = None
    model: str | None = None
    error: bool | None = None
    unfinished: bool | None = None
    files: list[Any] | None = None
    attachments: list[Any] | None = None
    feedback: dict[str, Any] | None = None
    children: list[Any] | None = None


class Chat(msgspec.Struct, rename="camel"):
    conversation_id: str
    title: str | None = None
    export_at: str | None = None
    options: dict[str, Any] | None = None
    messages: list[Any] | None = None
    messages_tree: list[Any] | None = None


def knows(item: Any) -> bool:
    return isinstance(item, dict) and "conversationId" in item and ("messages" in item or "messagesTree" in item)


def read(item: Any, notes: Notes) -> ConversationRecord:
    chat = msgspec.convert(item, Chat)
    nodes: list[Node] = []
    waiting = [(raw, "") for raw in reversed(chat.messages_tree or chat.messages or [])]
    while waiting:
        raw, above = waiting.pop()
        if not isinstance(raw, dict):
            raise ImportRefused(_("one of its messages is no object"))
        written = msgspec.convert(raw, Written)
        nodes.append(_node(written, above, notes))
        waiting += [(child, written.message_id) for child in reversed(written.children or ())]
    messages, leaf = messages_of(nodes, "")
    options = chat.options or {}
    times = [message.created_at for message in messages if message.created_at]
    return ConversationRecord(
        id=chat.conversation_id,
        title=chat.title or "",
        is_title_own=bool(chat.title),
        system_prompt=str(options.get("promptPrefix") or options.get("system") or ""),
        temperature=_number(options.get("temperature"), 0.0, 2.0),
        top_p=_number(options.get("top_p", options.get("topP")), 0.001, 1.0),
        created_at=min(times, default=moment(chat.export_at)),
        updated_at=max(times, default=moment(chat.export_at)),
        messages=messages,
        leaf=leaf,
    )


def _node(written: Written, above: str, notes: Notes) -> Node:
    texts, thoughts = [], []
    for part in written.content or ():
        kind = part.get("type") if isinstance(part, dict) else None
        value = part.get(kind) if kind in ("text", "think") else None
        if isinstance(value, dict):  # some versions wrap it once more
            value = value.get("value")
        if kind == "text" and isinstance(value, str):
            texts.append(value)
        elif kind == "think" and isinstance(value, str):
            thoughts.append(value)
        else:
            notes["calls of tools" if kind == "tool_call" else "images and other parts"] += 1
    notes["attached files"] += len(written.files or ()) + len(written.attachments or ())
    is_user = written.is_created_by_user
    if is_user is None:
        is_user = (written.sender or "").lower() == "user"
    return Node(
        written.message_id,
        above or written.parent_message_id or "",
        role="user" if is_user else "assistant",
        content="\n\n".join(texts) or written.text or "",
        reasoning="\n\n".join(thoughts),
        model="" if is_user else written.model or "",
        status="failed" if written.error else "stopped" if written.unfinished else "done",
        created_at=moment(written.created_at),
        feedback=_feedback(written.feedback),
    )


def _feedback(found: dict[str, Any] | None) -> FeedbackRecord | None:
    rating = {"thumbsUp": 1, "thumbsDown": -1}.get(str((found or {}).get("rating")))
    if found is None or rating is None:
        return None
    return FeedbackRecord(rating=1 if rating > 0 else -1, comment=str(found.get("text") or ""))


def _number(value: object, low: float, high: float) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and low <= value <= high else None  # type: ignore[arg-type, operator]
