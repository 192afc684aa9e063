"""What the chat keeps: conversations, their messages (a tree), and the generation that writes each answer.

Rows are read through `access` and written through the verbs' modules and `tasks` alone. Text is cleaned of what
Postgres cannot hold (NUL, lone surrogates) where it enters.
"""

from chatsite.chat.models.conversation import TAG_CHARS, TITLE_CHARS, Conversation, Tag
from chatsite.chat.models.generation import Generation
from chatsite.chat.models.message import (
    FILE_NAME_CHARS,
    REASON_CHARS,
    Attachment,
    Feedback,
    Message,
    QueuedMessage,
)
from chatsite.chat.models.search_entry import SearchEntry

__all__ = (
    "FILE_NAME_CHARS",
    "REASON_CHARS",
    "TAG_CHARS",
    "TITLE_CHARS",
    "Attachment",
    "Conversation",
    "Feedback",
    "Generation",
    "Message",
    "QueuedMessage",
    "SearchEntry",
    "Tag",
)
