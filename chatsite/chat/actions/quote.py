"""`/quote`: a fixed document goes the whole way of an answer, as a test of everything but the model.

Owns the document. It is recited by a worker through output, log, hub and page; whoever sees it whole and in order
knows that the site's streaming works. Called by `views`.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from uuid import UUID

from chatsite.accounts.models import User
from chatsite.chat.actions import answer, send
from chatsite.chat.models import Conversation
from chatsite.chat.text import QUOTE_COMMAND
from inference.messages.generation import Opening

DOCUMENT = Path(__file__).with_name("quoted.md")
TOKENS_PER_SECOND = 100.0


def quote(
    user: User,
    conversation: Conversation,
    text: str = "",
    *,
    tokens_per_second: float = TOKENS_PER_SECOND,
    idempotency_key: UUID | None = None,
) -> answer.Sent:
    """Have `text` (the fixed document, if empty) recited as an answer.

    Raises as `actions.send_message`.
    """
    opening = Opening(content=text or document(), is_whole=True, tokens_per_second=tokens_per_second)
    return send.send_message(user, conversation, QUOTE_COMMAND, idempotency_key=idempotency_key, opening=opening)


@cache
def document() -> str:
    return DOCUMENT.read_text(encoding="utf-8")
