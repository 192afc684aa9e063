"""DeepSeek's data export: `conversations.json`, a list; a mapping from id to node as ChatGPT's, but each message is a
list of fragments: what was asked, what was thought, what was answered. Older ones have the text as `content`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from chatsite.transfer.foreign.tree import Node, Notes, messages_of, moment
from chatsite.transfer.records import ConversationRecord

UNTAKEN = {"SEARCH": "web quotes", "READ_LINK": "web quotes", "TOOL_SEARCH": "web quotes", "TOOL_OPEN": "web quotes"}


class Fragment(msgspec.Struct):
    type: str
    content: Any = None


class Written(msgspec.Struct):
    fragments: list[Fragment] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    role: str | None = None
    model: str | None = None
    inserted_at: str | None = None
    files: list[Any] | None = None
    status: str | None = None


class Entry(msgspec.Struct):
    message: Written | None = None
    parent: str | None = None


class Chat(msgspec.Struct):
    mapping: dict[str, Entry]
    id: str = ""
    title: str | None = None
    inserted_at: str | None = None
    updated_at: str | None = None
    current_node: str | None = None


def knows(item: Any) -> bool:
    """ChatGPT's are alike from without; a message of theirs has an author and no fragments."""
    return isinstance(item, dict) and "mapping" in item and ("inserted_at" in item or _has_fragments(item["mapping"]))


def read(item: Any, notes: Notes) -> ConversationRecord:
    chat = msgspec.convert(item, Chat)
    nodes = [_node(key, entry, notes) for key, entry in chat.mapping.items()]
    messages, leaf = messages_of(nodes, chat.current_node or "")
    created_at, updated_at = moment(chat.inserted_at), moment(chat.updated_at)
    return ConversationRecord(
        id=chat.id,
        title=chat.title or "",
        is_title_own=bool(chat.title),
        created_at=created_at,
        updated_at=updated_at or created_at,
        messages=messages,
        leaf=leaf,
    )


def _has_fragments(mapping: Any) -> bool:
    nodes = mapping.values() if isinstance(mapping, dict) else ()
    messages = (node.get("message") for node in nodes if isinstance(node, dict))
    return any("fragments" in message for message in messages if isinstance(message, dict))


def _node(key: str, entry: Entry, notes: Notes) -> Node:
    node = Node(key, entry.parent or "")
    written = entry.message
    if written is None:
        return node
    texts: dict[str, list[str]] = {"REQUEST": [], "RESPONSE": [], "THINK": []}
    for fragment in written.fragments or ():
        if fragment.type in texts and isinstance(fragment.content, str):
            texts[fragment.type].append(fragment.content)
        else:
            notes[UNTAKEN.get(fragment.type, f"content of the kind {fragment.type[:40]!r}")] += 1
    is_user = bool(texts["REQUEST"]) or (written.role or "").upper() == "USER"
    pieces = texts["REQUEST"] if is_user else texts["RESPONSE"]
    notes["attached files"] += len(written.files or ())
    node.role = "user" if is_user else "assistant"
    node.content = "\n\n".join(filter(None, pieces)) or written.content or ""
    node.reasoning = "" if is_user else "\n\n".join(filter(None, texts["THINK"])) or written.reasoning_content or ""
    node.model = "" if is_user else written.model or ""
    node.created_at = moment(written.inserted_at)
    return node
