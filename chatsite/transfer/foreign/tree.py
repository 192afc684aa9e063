"""From messages that name each other by id, in any order, to a list that names parents by place.

Messages that cannot be taken (tools, system turns, empty ones) leave the tree, and what followed them follows what was
before them. Several answers in a row, as tools leave them behind, become one. Iterative: depth costs no stack.
"""

from __future__ import annotations

import datetime
import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from django.utils.translation import gettext as _

from chatsite.transfer.errors import ImportRefused
from chatsite.transfer.records import AnswerRecord, ConversationRecord, FeedbackRecord, MessageRecord

Notes = Counter[str]  # what could not be taken -> how often


@dataclass(frozen=True)
class Source:
    """`key` goes into the origin of what is imported, `name` is shown."""

    key: str
    name: str
    knows: Callable[[Any], bool]
    read: Callable[[Any, Notes], ConversationRecord]


@dataclass
class Node:
    """A message as it was found. `role` "" leaves it out."""

    id: str
    parent: str
    role: str = ""
    content: str = ""
    reasoning: str = ""
    model: str = ""
    status: str = "done"
    created_at: datetime.datetime | None = None
    feedback: FeedbackRecord | None = None
    children: list[Node] = field(default_factory=list)


def moment(value: object) -> datetime.datetime | None:
    """A time as seconds, milliseconds or ISO text; None for what is none."""
    try:
        if isinstance(value, str):
            found = datetime.datetime.fromisoformat(value)
            return found if found.tzinfo else found.replace(tzinfo=datetime.UTC)
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            seconds = value / 1000 if value > 1e11 else value
            return datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return None


def messages_of(nodes: list[Node], shown: str) -> tuple[list[MessageRecord], int | None]:
    """The messages, parents first and otherwise by time, and the place of the one named `shown` (or the newest).

    Raises:
        ImportRefused: two have the same id, or they follow each other in a circle.
    """
    by_id = {node.id: node for node in nodes}
    if len(by_id) < len(nodes):
        raise ImportRefused(_("two messages have the same id"))
    roots: list[Node] = []
    for node in nodes:
        parent = by_id.get(node.parent)
        (roots if parent is None else parent.children).append(node)
    records: list[MessageRecord] = []
    places: dict[str, int | None] = {}
    waiting = [_entry(index, node) for index, node in enumerate(roots)]
    heapq.heapify(waiting)
    num_seen = 0
    while waiting:
        *_key, node = heapq.heappop(waiting)
        num_seen += 1
        places[node.id] = _place(node, places.get(node.parent), records, by_id)
        for child in node.children:
            heapq.heappush(waiting, _entry(num_seen + len(waiting) + len(nodes), child))
    if num_seen < len(nodes):
        raise ImportRefused(_("its messages follow each other in a circle"))
    return records, places.get(shown, len(records) - 1 if records else None)


def _entry(index: int, node: Node) -> tuple[float, int, str, Node]:
    return (node.created_at.timestamp() if node.created_at else 0.0, index, node.id, node)


def _place(node: Node, parent: int | None, records: list[MessageRecord], by_id: dict[str, Node]) -> int | None:
    """Where the node's message is in `records`, added there if need be; its parent's place when it is left out."""
    has_text = bool(node.content.strip() or node.reasoning.strip())
    if node.role not in ("user", "assistant") or not has_text:
        return parent
    before = records[parent] if parent is not None else None
    if node.role == "assistant" and before is not None and before.role == "assistant" and _is_only_child(node, by_id):
        before.content = "\n\n".join(filter(None, (before.content, node.content)))
        before.reasoning = "\n\n".join(filter(None, (before.reasoning, node.reasoning)))
        before.feedback = before.feedback or node.feedback
        before.answer = _answer(node, before.answer)
        return parent
    records.append(
        MessageRecord(
            role="user" if node.role == "user" else "assistant",
            content=node.content,
            parent=parent,
            reasoning=node.reasoning,
            created_at=node.created_at,
            feedback=node.feedback if node.role == "assistant" else None,
            answer=_answer(node) if node.role == "assistant" else None,
        )
    )
    return len(records) - 1


def _is_only_child(node: Node, by_id: dict[str, Node]) -> bool:
    """Whether nothing branches between the node and the answer it would join."""
    parent = by_id.get(node.parent)
    while parent is not None:
        if len(parent.children) > 1:
            return False
        if parent.role == "assistant":
            return True
        parent = by_id.get(parent.parent)
    return True


def _answer(node: Node, begun: AnswerRecord | None = None) -> AnswerRecord:
    """How it was written; the last part of several decides, except on when the first began."""
    status: Any = node.status if node.status in ("done", "stopped", "failed") else "done"
    model = node.model or (begun.model if begun else "")
    created_at = begun.created_at if begun else node.created_at
    return AnswerRecord(model=model, status=status, created_at=created_at, ended_at=node.created_at)
