"""Open WebUI's JSON export: a list of chats, each with its messages in `chat.history`, linked both ways.

What a model thought lies in the text there, as a `details` element; it is taken out of it.
"""

from __future__ import annotations

import html
import re
from typing import Any

import msgspec

from chatsite.transfer.foreign.tree import Node, Notes, messages_of, moment
from chatsite.transfer.records import ConversationRecord, FeedbackRecord

_BEGIN = re.compile(r'<details type="(\w{1,40})"')
_SUMMARY = re.compile(r"\s*<summary>[^<]*</summary>")


class Written(msgspec.Struct, rename="camel"):
    role: str
    content: Any = ""
    parent_id: str | None = None
    timestamp: float | None = None
    model: str | None = None
    done: bool | None = None
    error: Any = None
    files: list[Any] | None = None
    annotation: dict[str, Any] | None = None


class History(msgspec.Struct, rename="camel"):
    messages: dict[str, Written]
    current_id: str | None = None


class Inner(msgspec.Struct):
    history: History
    id: str | None = None
    title: str | None = None
    params: dict[str, Any] | None = None
    system: str | None = None
    tags: list[Any] | None = None
    timestamp: float | None = None


class Chat(msgspec.Struct):
    chat: Inner
    id: str | None = None
    title: str | None = None
    created_at: float | None = None
    updated_at: float | None = None
    archived: bool | None = None
    pinned: bool | None = None
    meta: dict[str, Any] | None = None


def knows(item: Any) -> bool:
    inner = item.get("chat", item) if isinstance(item, dict) else None
    return isinstance(inner, dict) and isinstance(inner.get("history"), dict)


def read(item: Any, notes: Notes) -> ConversationRecord:
    chat = msgspec.convert(item if "chat" in item else {"chat": item}, Chat)
    inner = chat.chat
    nodes = [_node(key, written, notes) for key, written in inner.history.messages.items()]
    messages, leaf = messages_of(nodes, inner.history.current_id or "")
    updated_at = moment(chat.updated_at) or moment(inner.timestamp)
    tags = [*(inner.tags or ()), *((chat.meta or {}).get("tags") or ())]
    system = inner.system or (inner.params or {}).get("system")
    title = chat.title or inner.title or ""
    return ConversationRecord(
        id=chat.id or inner.id or "",
        title=title,
        is_title_own=bool(title),
        system_prompt=system if isinstance(system, str) else "",
        tags=sorted({name for tag in tags if (name := _tag(tag))}),
        created_at=moment(chat.created_at) or moment(inner.timestamp),
        updated_at=updated_at,
        pinned_at=updated_at if chat.pinned else None,
        archived_at=updated_at if chat.archived else None,
        messages=messages,
        leaf=leaf,
    )


def _node(key: str, written: Written, notes: Notes) -> Node:
    content = written.content
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
        notes["images and other parts"] += len(content) - len(texts)
        content = "\n\n".join(text for text in texts if isinstance(text, str))
    notes["attached files"] += len(written.files or ())
    content, reasoning = _without_details(content if isinstance(content, str) else "", notes)
    return Node(
        key,
        written.parent_id or "",
        role=written.role,
        content=content,
        reasoning=reasoning,
        model=(written.model or "") if written.role == "assistant" else "",
        status="failed" if written.error else "stopped" if written.done is False else "done",
        created_at=moment(written.timestamp),
        feedback=_feedback(written.annotation),
    )


def _without_details(content: str, notes: Notes) -> tuple[str, str]:
    """The text alone, and what was thought before it. Ends are looked for once: a text may begin many without one."""
    if '<details type="' not in content:
        return content, ""
    texts: list[str] = []
    thoughts: list[str] = []
    place = 0
    while (found := _BEGIN.search(content, place)) is not None:
        inside = content.find(">", found.end()) + 1
        end = content.find("</details>", inside)
        if not inside or end < 0:
            break
        texts.append(content[place : found.start()])
        if found[1] == "reasoning":
            thoughts.append(_unquoted(content[inside:end]))
        else:
            notes["calls of tools"] += 1
        place = end + len("</details>")
        while place < len(content) and content[place].isspace():
            place += 1
    texts.append(content[place:])
    return "".join(texts).strip("\n"), "\n\n".join(thoughts)


def _unquoted(said: str) -> str:
    summary = _SUMMARY.match(said)
    lines = html.unescape(said[summary.end() :] if summary else said).strip().splitlines()
    return "\n".join(line.removeprefix(">").removeprefix(" ") for line in lines)


def _feedback(found: dict[str, Any] | None) -> FeedbackRecord | None:
    rating = (found or {}).get("rating")
    if found is None or rating not in (1, -1):
        return None
    words = [str(found[name]) for name in ("reason", "comment") if found.get(name)]
    return FeedbackRecord(rating=1 if rating == 1 else -1, comment=": ".join(words))


def _tag(tag: object) -> str:
    name = tag.get("name") if isinstance(tag, dict) else tag
    return name if isinstance(name, str) else ""
