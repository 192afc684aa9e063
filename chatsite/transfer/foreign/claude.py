"""claude.ai's data export: `conversations.json`, a list; messages in a flat list, in newer ones linked to parents.

The text of a pasted file lies in the export, and comes along as a file. `users.json`, `projects.json` and
`memories.json` beside it hold no conversation.
"""

from __future__ import annotations

from typing import Any

import msgspec
from django.conf import settings

from chatsite.transfer.foreign.tree import Node, Notes, messages_of, moment
from chatsite.transfer.records import ConversationRecord, FileRecord

ROLES = {"human": "user", "user": "user", "assistant": "assistant"}


class Written(msgspec.Struct):
    sender: str
    uuid: str = ""
    text: str | None = None
    content: list[Any] | None = None
    created_at: str | None = None
    parent_message_uuid: str | None = None
    attachments: list[Any] | None = None
    files: list[Any] | None = None
    truncated: bool | None = None


class Chat(msgspec.Struct):
    chat_messages: list[Written]
    uuid: str = ""
    name: str | None = None
    model: str | None = None
    created_at: str | None = None
    updated_at: str | None = None
    current_leaf_message_uuid: str | None = None
    is_starred: bool | None = None


def knows(item: Any) -> bool:
    return isinstance(item, dict) and "chat_messages" in item


def read(item: Any, notes: Notes) -> ConversationRecord:
    chat = msgspec.convert(item, Chat)
    model = chat.model or ""
    nodes: list[Node] = []
    is_linked = any(written.parent_message_uuid for written in chat.chat_messages)
    before = ""
    for number, written in enumerate(chat.chat_messages):
        key = written.uuid or f"#{number}"
        nodes.append(_node(key, written.parent_message_uuid or "" if is_linked else before, written, model, notes))
        before = key
    messages, leaf = messages_of(nodes, chat.current_leaf_message_uuid or "")
    updated_at = moment(chat.updated_at)
    return ConversationRecord(
        id=chat.uuid,
        title=chat.name or "",
        is_title_own=bool(chat.name),
        model=model,
        created_at=moment(chat.created_at),
        updated_at=updated_at,
        pinned_at=updated_at if chat.is_starred else None,
        messages=messages,
        leaf=leaf,
    )


def _node(key: str, parent: str, written: Written, model: str, notes: Notes) -> Node:
    texts: list[str] = []
    thoughts: list[str] = []
    for part in written.content or ():
        kind = part.get("type") if isinstance(part, dict) else None
        value = part.get(kind) if kind in ("text", "thinking") else None
        if isinstance(value, str):
            (texts if kind == "text" else thoughts).append(value)
        elif kind not in ("token_budget", "flag"):
            notes["calls of tools" if kind in ("tool_use", "tool_result") else "images and other parts"] += 1
    role = ROLES.get(written.sender, "")
    if not role:
        notes["messages of neither you nor the model"] += 1
    return Node(
        key,
        parent,
        role=role,
        content="\n\n".join(filter(None, texts)) or written.text or "",
        reasoning="\n\n".join(filter(None, thoughts)) if role == "assistant" else "",
        model=model if role == "assistant" else "",
        status="stopped" if written.truncated else "done",
        created_at=moment(written.created_at),
        files=_files(written, notes),
    )


def _files(written: Written, notes: Notes) -> list[FileRecord]:
    """Those whose text is there; of the others the export has the name alone."""
    found: list[FileRecord] = []
    names: set[str] = set()
    for attached in written.attachments or ():
        text = attached.get("extracted_content") if isinstance(attached, dict) else None
        name = attached.get("file_name") if isinstance(attached, dict) else None
        if isinstance(name, str):
            names.add(name)
        if isinstance(text, str) and len(text) > settings.SMOLFLEET.max_file_chars:
            notes["attached files with too much text"] += 1
        elif isinstance(text, str) and text.strip():
            found.append(
                FileRecord(name=name if isinstance(name, str) else "", text=text, num_bytes=len(text.encode()))
            )
        else:
            notes["attached files"] += 1
    others = [file for file in written.files or () if not isinstance(file, dict) or file.get("file_name") not in names]
    notes["attached files"] += len(others)
    return found
