"""ChatGPT's data export: `conversations.json`, a list; the messages of each are a mapping from id to node."""

from __future__ import annotations

from typing import Any

import msgspec

from chatsite.transfer.foreign.tree import Node, Notes, messages_of, moment
from chatsite.transfer.records import ConversationRecord

UNTAKEN = {"code": "code run by tools", "execution_output": "results of tools", "tether_quote": "web quotes"}
HIDDEN = frozenset({"user_editable_context", "model_editable_context", "reasoning_recap", "tether_browsing_display"})


class Author(msgspec.Struct):
    role: str = ""


class Content(msgspec.Struct):
    content_type: str = "text"
    parts: list[Any] | None = None
    text: str | None = None
    thoughts: list[dict[str, Any]] | None = None


class Written(msgspec.Struct):
    author: Author
    content: Content
    create_time: float | None = None
    status: str | None = None
    recipient: str | None = None
    metadata: dict[str, Any] | None = None


class Entry(msgspec.Struct):
    message: Written | None = None
    parent: str | None = None


class Chat(msgspec.Struct):
    mapping: dict[str, Entry]
    title: str | None = None
    create_time: float | None = None
    update_time: float | None = None
    current_node: str | None = None
    conversation_id: str | None = None
    id: str | None = None
    is_archived: bool | None = None


def knows(item: Any) -> bool:
    return isinstance(item, dict) and isinstance(item.get("mapping"), dict)


def read(item: Any, notes: Notes) -> ConversationRecord:
    chat = msgspec.convert(item, Chat)
    system = ""
    nodes = []
    for key, entry in chat.mapping.items():
        node = Node(key, entry.parent or "")
        if entry.message is not None:
            _fill(node, entry.message, notes)
            if entry.message.author.role == "system" and not system:
                system = _parts(entry.message.content, notes)
        nodes.append(node)
    messages, leaf = messages_of(nodes, chat.current_node or "")
    updated_at = moment(chat.update_time)
    return ConversationRecord(
        id=chat.conversation_id or chat.id or "",
        title=chat.title or "",
        is_title_own=bool(chat.title),
        system_prompt=system,
        created_at=moment(chat.create_time),
        updated_at=updated_at,
        archived_at=updated_at if chat.is_archived else None,
        messages=messages,
        leaf=leaf,
    )


def _fill(node: Node, written: Written, notes: Notes) -> None:
    metadata = written.metadata or {}
    content = written.content
    node.created_at = moment(written.create_time)
    node.model = str(metadata.get("model_slug") or "")
    role = written.author.role
    if role in ("system", "") or metadata.get("is_visually_hidden_from_conversation") or content.content_type in HIDDEN:
        return
    if role == "tool" or (written.recipient or "all") != "all":
        notes["calls of tools"] += 1
        return
    if content.content_type == "thoughts":
        pieces = [str(thought.get("content") or thought.get("summary") or "") for thought in content.thoughts or ()]
        node.role, node.reasoning = "assistant", "\n\n".join(filter(None, pieces))
        return
    if content.content_type not in ("text", "multimodal_text"):
        notes[UNTAKEN.get(content.content_type, f"content of the kind {content.content_type[:40]!r}")] += 1
        return
    notes["attached files"] += len(metadata.get("attachments") or ())
    node.role = role
    node.content = _parts(content, notes)
    node.status = "stopped" if written.status == "in_progress" else "done"


def _parts(content: Content, notes: Notes) -> str:
    texts = []
    for part in content.parts or ():
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict) and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            notes["images and sounds"] += 1
    return "\n".join(filter(None, texts)) or (content.text or "")
