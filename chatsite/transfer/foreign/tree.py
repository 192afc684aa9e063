"""From messages that name each other by id, in any order, to a list that names parents by place.

Messages that cannot be taken (tools, system turns, empty ones) leave the tree, and what followed them follows what was
before them. Several answers in a row, as tools leave them behind, become one. Iterative: depth costs no stack.
"""

from __future__ import annotations

import datetime
import heapq
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from django.utils.translation import gettext as _

from chatsite.transfer.checking import is_time_of_a_chat
from chatsite.transfer.errors import ImportRefused
from chatsite.transfer.records import AnswerRecord, ConversationRecord, FeedbackRecord, FileRecord, MessageRecord

MAX_TIME_CHARS = 64  # of one that is written out
_BACKTICKS = re.compile("`+")

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
    files: list[FileRecord] = field(default_factory=list)
    children: list[Node] = field(default_factory=list)


def moment(value: object) -> datetime.datetime | None:
    """A time as seconds, milliseconds or ISO text; None for what is none."""
    try:
        if isinstance(value, str) and len(value) <= MAX_TIME_CHARS:
            found = datetime.datetime.fromisoformat(value)
            found = found.astimezone(datetime.UTC) if found.tzinfo else found.replace(tzinfo=datetime.UTC)
        elif isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            seconds = value / 1000 if value > 1e11 else value
            found = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
        else:
            return None
    except (ValueError, OverflowError, OSError):
        return None
    return found if is_time_of_a_chat(found) else None


def fenced(text: str, language: str = "") -> str:
    """A block of code that nothing in `text` closes."""
    longest = max((len(run) for run in _BACKTICKS.findall(text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


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
    parts: dict[int, _Parts] = {}
    places: dict[str, int | None] = {}
    waiting = [_entry(index, node) for index, node in enumerate(roots)]
    heapq.heapify(waiting)
    num_seen = 0
    while waiting:
        *_key, node = heapq.heappop(waiting)
        num_seen += 1
        places[node.id] = _place(node, places.get(node.parent), records, parts, by_id)
        for child in node.children:
            heapq.heappush(waiting, _entry(num_seen + len(waiting) + len(nodes), child))
    if num_seen < len(nodes):
        raise ImportRefused(_("its messages follow each other in a circle"))
    for place, part in parts.items():
        records[place].content = "\n\n".join(filter(None, part.contents))
        records[place].reasoning = "\n\n".join(filter(None, part.reasonings))
    return records, places.get(shown, len(records) - 1 if records else None)


def _entry(index: int, node: Node) -> tuple[float, int, str, Node]:
    return (node.created_at.timestamp() if node.created_at else 0.0, index, node.id, node)


@dataclass
class _Parts:
    """Of an answer that is made of several messages; joined once, for there may be thousands."""

    contents: list[str]
    reasonings: list[str]


def _place(
    node: Node, parent: int | None, records: list[MessageRecord], parts: dict[int, _Parts], by_id: dict[str, Node]
) -> int | None:
    """Where the node's message is in `records`, added there if need be; its parent's place when it is left out."""
    has_text = bool(node.content.strip() or node.reasoning.strip() or node.files)
    if node.role not in ("user", "assistant") or not has_text:
        return parent
    before = records[parent] if parent is not None else None
    is_answer = before is not None and node.role == before.role == "assistant"
    if parent is not None and before is not None and is_answer and _is_only_child(node, by_id):
        part = parts.setdefault(parent, _Parts([before.content], [before.reasoning]))
        part.contents.append(node.content)
        part.reasonings.append(node.reasoning)
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
            files=node.files,
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
