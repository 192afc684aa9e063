"""A conversation on paper: everything of it that can leave this site and come back, as typed values. The file format.

Version 1. Rows become records in `reading`, records rows in `importing`; other programs' files become records in
`foreign`. Messages are listed as they were written, parents first, and name their parent by number, so that two exports
of the same tree are the same text. Knows no database.
"""

from __future__ import annotations

import datetime
import hashlib
from typing import Literal

import msgspec

FORMAT = "smolfleet.conversation"
VERSION = 1
ACCOUNT_FOLDER = "account/"  # of a zip: what is there is of the person, and no conversation

Status = Literal["done", "stopped", "failed"]


class FileRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    name: str
    media_type: str = "text/plain"
    text: str
    num_bytes: int = 0
    num_tokens: int | None = None


class FeedbackRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    rating: Literal[1, -1]
    reason: str = ""
    comment: str = ""


class AnswerRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How an answer was written."""

    model: str = ""
    status: Status = "done"
    finish_reason: str = ""
    cut: str = ""
    error_code: str = ""
    error_message: str = ""
    is_retryable: bool = False
    worker: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    num_dropped: int = 0
    decode_seconds: float = 0.0
    created_at: datetime.datetime | None = None
    ended_at: datetime.datetime | None = None


class CallRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A call of a tool that an answer ended with, and what it came to."""

    id: str
    name: str
    arguments: str = ""
    result: str = ""
    has_failed: bool = False
    seconds: float = 0.0


class MessageRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    """`parent` is the place of the message before in the list, from 0; None begins the conversation."""

    role: Literal["user", "assistant"]
    content: str
    parent: int | None = None
    reasoning: str = ""
    created_at: datetime.datetime | None = None
    edited_at: datetime.datetime | None = None
    files: list[FileRecord] = []
    calls: list[CallRecord] = []
    feedback: FeedbackRecord | None = None
    answer: AnswerRecord | None = None


class ConversationRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    """`id` is the one it had where it came from; `leaf` the place of the last message that was shown."""

    id: str
    title: str = ""
    is_title_own: bool = False
    model: str = ""
    system_prompt: str = ""
    thinking: bool | None = None
    tools: bool = False
    thinking_budget: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    prompt_date: datetime.date | None = None
    tags: list[str] = []
    pinned_at: datetime.datetime | None = None
    archived_at: datetime.datetime | None = None
    created_at: datetime.datetime | None = None
    updated_at: datetime.datetime | None = None
    messages: list[MessageRecord] = []
    leaf: int | None = None


class ConversationFile(msgspec.Struct, kw_only=True):
    """What a `.json` file holds."""

    format: Literal["smolfleet.conversation"] = "smolfleet.conversation"
    version: int = VERSION
    conversation: ConversationRecord


def encode(record: ConversationRecord) -> bytes:
    """The file of a conversation."""
    return msgspec.json.format(msgspec.json.encode(ConversationFile(conversation=record)), indent=2) + b"\n"


def digest(origin: str, record: ConversationRecord) -> str:
    """Tells whether two files hold the same conversation, from the same place, unchanged."""
    return hashlib.sha256(origin.encode() + b"\0" + msgspec.json.encode(record)).hexdigest()


def path_of(record: ConversationRecord) -> list[MessageRecord]:
    """The messages that were shown, from the first to the last."""
    path: list[MessageRecord] = []
    place = record.leaf
    while place is not None:
        path.append(record.messages[place])
        place = record.messages[place].parent
    return path[::-1]
