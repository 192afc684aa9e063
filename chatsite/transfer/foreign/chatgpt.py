"""ChatGPT's data export: `conversations.json`, or several numbered ones; messages are a mapping from id to node.

A canvas is written by a call of a tool and stands beside the chat there; here it is a block of code in the answer.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from chatsite.transfer.foreign.citations import without_citations
from chatsite.transfer.foreign.tree import Node, Notes, fenced, messages_of, moment
from chatsite.transfer.records import ConversationRecord

UNTAKEN = {"code": "code run by tools", "execution_output": "results of tools", "tether_quote": "web quotes"}
HIDDEN = frozenset({"user_editable_context", "model_editable_context", "reasoning_recap", "tether_browsing_display"})
CANVAS = ("canmore.create_textdoc", "canmore.update_textdoc")
_WHOLE = frozenset({".*", "^.*$", "(?s).*", r"[\s\S]*", r"\A.*\Z"})  # patterns of an update that leave nothing
_LANGUAGE = re.compile(r"code/([A-Za-z0-9+#_.-]{1,30})")

_canvas_decoder = msgspec.json.Decoder(dict[str, Any])  # made here: see inference.messages.serialization


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
    default_model_slug: str | None = None


def knows(item: Any) -> bool:
    return isinstance(item, dict) and "mapping" in item


def read(item: Any, notes: Notes) -> ConversationRecord:
    chat = msgspec.convert(item, Chat)
    model = chat.default_model_slug or ""
    system = ""
    nodes = []
    for key, entry in chat.mapping.items():
        node = Node(key, entry.parent or "")
        if entry.message is not None:
            _fill(node, entry.message, notes)
            node.model = node.model or model
            if entry.message.author.role == "system" and not system:
                system = _parts(entry.message.content, notes)
        nodes.append(node)
    messages, leaf = messages_of(nodes, chat.current_node or "")
    updated_at = moment(chat.update_time)
    return ConversationRecord(
        id=chat.conversation_id or chat.id or "",
        title=chat.title or "",
        is_title_own=bool(chat.title),
        model=model,
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
    if role == "assistant" and written.recipient in CANVAS:
        node.role, node.content = role, _canvas(content, notes)
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
    node.content = without_citations(_parts(content, notes))
    node.status = "stopped" if written.status == "in_progress" else "done"


def _canvas(content: Content, notes: Notes) -> str:
    """The document that was made, or made anew as a whole. Edits of a part of one are patterns, and left out."""
    try:
        made = _canvas_decoder.decode(_parts(content, notes))
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        notes["canvas documents that cannot be read"] += 1
        return ""
    updates = made.get("updates")
    if isinstance(updates, list):
        wholes = [update for update in updates if isinstance(update, dict) and update.get("pattern") in _WHOLE]
        notes["edits of canvas documents"] += len(updates) - len(wholes)
        texts = [update.get("replacement") for update in wholes[-1:]]
    else:
        texts = [made.get("content")]
    kind = made.get("type")
    language = _LANGUAGE.fullmatch(kind) if isinstance(kind, str) else None
    name = made.get("name")
    block = "\n".join(
        fenced(text, language[1] if language else "markdown" if kind == "document" else "")
        for text in texts
        if isinstance(text, str)
    )
    return f"**{name}**\n\n{block}" if block and isinstance(name, str) and name.isprintable() else block


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
