"""Writing the ledger: each answer is added to the sums of its day once, in the transaction that ends it.

Days of the ledger are those of TIME_ZONE; beside them stand the days of a person's own quota (`own_days`). Owns what
counts against a quota: what a model read without having it in its cache, and what it wrote, in chats, for
programs and in temporary chats. Titles are entered and cost nothing. Knows no generation; called by the chat alone.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db import connection, transaction

from chatsite.accounts.models import ApiKey
from chatsite.accounts.time_zones import zone_of_id
from chatsite.usage import own_days
from chatsite.usage.calendar import day_of

CHARGED_SOURCES = frozenset({"chat", "api", "temporary"})

_SUMS = (
    *("num_answers", "num_failed", "num_stopped"),
    *("prompt_tokens", "cached_tokens", "completion_tokens", "charged_tokens", "decode_seconds"),
)
_ADDED = ", ".join(f"{name} = usage_usageday.{name} + excluded.{name}" for name in _SUMS)
_KEY = "user_id, day, model, source, api_key_id"  # the unique constraint's columns
_ADD = f"""
INSERT INTO usage_usageday ({_KEY}, {", ".join(_SUMS)})
VALUES (%s, %s, %s, %s, %s, {", ".join("%s" for _ in _SUMS)})
ON CONFLICT ({_KEY}) DO UPDATE SET {_ADDED}
"""
_WITHOUT_KEY = f"""
WITH taken AS (DELETE FROM usage_usageday WHERE api_key_id = %s RETURNING *)
INSERT INTO usage_usageday ({_KEY}, {", ".join(_SUMS)})
SELECT user_id, day, model, source, NULL, {", ".join(_SUMS)} FROM taken
ON CONFLICT ({_KEY}) DO UPDATE SET {_ADDED}
"""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One answer that has ended. `source` is its generation's; cached tokens are part of the prompt's."""

    user_id: UUID
    ended_at: datetime.datetime
    model: str
    source: str
    api_key_id: UUID | None = None
    is_failed: bool = False
    is_stopped: bool = False
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    decode_seconds: float = 0.0

    @property
    def charged_tokens(self) -> int:
        if self.source not in CHARGED_SOURCES:
            return 0
        return max(0, self.prompt_tokens - self.cached_tokens) + self.completion_tokens


def add(entry: Entry) -> None:
    """Add `entry` to its day's row, in the caller's transaction. Whoever calls knows that it is the first time."""
    assert connection.in_atomic_block, "the end of an answer and its cost are one"
    sums: tuple[float, ...] = (
        *(1, int(entry.is_failed), int(entry.is_stopped)),
        *(entry.prompt_tokens, entry.cached_tokens, entry.completion_tokens, entry.charged_tokens),
        entry.decode_seconds,
    )
    key = (entry.user_id, day_of(entry.ended_at), entry.model, entry.source, entry.api_key_id)
    with connection.cursor() as cursor:
        cursor.execute(_ADD, [*key, *sums])
    if entry.charged_tokens:
        day = own_days.day_at(entry.user_id, entry.ended_at, zone_of_id(entry.user_id))
        own_days.add(entry.user_id, day, entry.charged_tokens)


def let_go_of_key(sender: Any, instance: ApiKey, **kwargs: Any) -> None:
    """Before a key's row is deleted: its sums join those of answers without a key, of which a day has one row."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(_WITHOUT_KEY, [instance.pk])
