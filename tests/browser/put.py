"""Settled conversations put straight into a running site's database, for tests of what is done with them afterwards.

In SQL, since `manage.py shell` takes seconds. The rows are as the site writes them; their ids rise in the order of the
conversation.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

import psycopg
from playwright.sync_api import Page

from chatsite.accounts.models import new_id
from chatsite.chat.text import clean
from tests.fleet import Fleet

_CONVERSATION = """
INSERT INTO chat_conversation (id, owner_id, title, is_title_own, model, system_prompt, prompt_date, created_at,
                               updated_at)
SELECT %s, id, %s, %s, '', '', now(), now(), now() FROM accounts_user WHERE username = %s
"""
_MESSAGE = """
INSERT INTO chat_message (id, conversation_id, parent_id, role, content, reasoning, created_at)
VALUES (%s, %s, %s, %s, %s, '', now())
"""
_VERSION = """
INSERT INTO chat_message (id, conversation_id, parent_id, role, content, reasoning, created_at)
SELECT %s, conversation_id, parent_id, role, %s, '', now() FROM chat_message WHERE id = %s RETURNING conversation_id
"""
_GENERATION = """
INSERT INTO chat_generation (id, user_id, message_id, source, model, status, stop_requested, request, finish_reason,
                             error_code, error_message, is_retryable, worker, prompt_tokens, cached_tokens,
                             completion_tokens, reasoning_tokens, decode_seconds, content_sha256, created_at, ended_at)
SELECT %s, owner_id, message.id, 'chat', 'm', 'done', false, '', 'stop', '', '', false, '', 1, 0, 3, 0, 1, '', now(),
       now()
FROM chat_message message JOIN chat_conversation conversation ON conversation.id = conversation_id
WHERE message.id = %s
"""
_LEAF = "UPDATE chat_conversation SET leaf_id = %s WHERE id = %s"


@dataclass(frozen=True)
class Put:
    """`message_ids` in the order they were said."""

    id: UUID
    message_ids: list[UUID]

    @property
    def address(self) -> str:
        return f"/chat/{self.id}/"


def conversation(site: Fleet, page: Page, *contents: str, title: str = "Stars", is_title_own: bool = False) -> Put:
    """A conversation of the page's person; `contents` are questions and answers in turn."""
    put = Put(new_id(), [new_id() for _ in contents])
    parents = [None, *put.message_ids]
    rows = [
        (pk, put.id, parent, "assistant" if index % 2 else "user", clean(content))
        for index, (pk, parent, content) in enumerate(zip(put.message_ids, parents, contents, strict=False))
    ]
    with psycopg.connect(site.env["DATABASE_URL"]) as connection:
        name = page.locator(".me .name").text_content()
        assert connection.execute(_CONVERSATION, [put.id, title, is_title_own, name]).rowcount == 1, name
        connection.cursor().executemany(_MESSAGE, rows)
        connection.execute(_LEAF, [put.message_ids[-1], put.id])
    return put


def version(site: Fleet, beside: UUID, content: str, *, is_shown: bool = False) -> UUID:
    """Another text for the place of the message `beside`; its id."""
    pk = new_id()
    with psycopg.connect(site.env["DATABASE_URL"]) as connection:
        found = connection.execute(_VERSION, [pk, content, beside]).fetchone()
        assert found is not None, beside
        if is_shown:
            connection.execute(_LEAF, [pk, found[0]])
    return pk


def generation(site: Fleet, answer: UUID) -> None:
    """How the answer came about, as one that a model has written has it."""
    with psycopg.connect(site.env["DATABASE_URL"]) as connection:
        assert connection.execute(_GENERATION, [new_id(), answer]).rowcount == 1, answer
