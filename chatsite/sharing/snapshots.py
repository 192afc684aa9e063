"""What a link shows: the shown path of a conversation as plain JSON, copied at one moment, and drawn again from that.

A copy has what was asked and answered, the names of files and tools and nothing else: no other branch, no instructions,
no file's text, nothing a tool was asked or found, no numbers; thoughts only when its owner chose so. Drawn by the
chat's own renderer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django.utils.safestring import SafeString

from chatsite.chat.models import Conversation, Generation, Message
from chatsite.chat.queries import access
from chatsite.chat.rendering import stream
from chatsite.chat.tools import catalog

VERSION = 1


@dataclass(frozen=True)
class Turn:
    is_answer: bool
    text: str
    html: SafeString
    reasoning: str
    files: tuple[str, ...]
    state: str  # stopped | failed | "" of an answer
    is_edited: bool
    tools: tuple[str, ...] = ()  # it called, by the names people know


def of(conversation: Conversation, *, with_thoughts: bool) -> dict[str, Any]:
    """The snapshot of what is settled on the shown path."""
    turns = [_turn(message, with_thoughts) for message in access.path_of(conversation) if _is_settled(message)]
    return {"version": VERSION, "turns": turns}


def turns_of(snapshot: Mapping[str, Any]) -> Iterator[Turn]:
    for place, turn in enumerate(snapshot["turns"]):
        is_answer = turn["role"] == Message.Role.ASSISTANT
        yield Turn(
            is_answer=is_answer,
            text=turn["content"],
            html=stream.render(turn["content"], f"m{place}") if is_answer else SafeString(""),
            reasoning=turn.get("reasoning", ""),
            files=tuple(turn.get("files", ())),
            state=turn.get("state", ""),
            is_edited=turn.get("is_edited", False),
            tools=tuple(map(catalog.title_of, turn.get("tools", ()))),
        )


def _is_settled(message: Message) -> bool:
    generation = getattr(message, "generation", None)
    return generation is None or not generation.is_active


def _turn(message: Message, with_thoughts: bool) -> dict[str, Any]:
    turn: dict[str, Any] = {"role": message.role, "content": message.content}
    generation = getattr(message, "generation", None)
    if generation is not None and generation.status in (Generation.Status.STOPPED, Generation.Status.FAILED):
        turn["state"] = generation.status
    if message.edited_at:
        turn["is_edited"] = True
    if message.calls:
        turn["tools"] = [call["name"] for call in message.calls]
    if with_thoughts and message.reasoning:
        turn["reasoning"] = message.reasoning
    if files := [file.name for file in message.attachments.all()]:
        turn["files"] = files
    return turn
