"""The channels on which open pages hear that something changed. Hints only: listeners also look into Postgres, so
losing one costs time and nothing else.

A conversation's says that an answer begins in it, to its sockets; a person's says that the list of conversations, or a
mark in it, changed, to every window of theirs. Another of a person, and one of everybody, say that a stream should look
whether it may still go on: see `revoking`.
"""

from __future__ import annotations

import re
from uuid import UUID

from inference.coordination import redis_keys

_CHANGE = re.compile(rb"([a-z]{1,20}) ([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")


def channel_of(conversation_id: UUID) -> str:
    return f"{redis_keys.PREFIX}conversation:{conversation_id}"


STANDING_OF_ALL = f"{redis_keys.PREFIX}standing"


def channel_of_standing(user_id: UUID) -> str:
    return f"{redis_keys.PREFIX}standing:{user_id}"


def channel_of_list(user_id: UUID) -> str:
    return f"{redis_keys.PREFIX}list:{user_id}"


def change_of(hint: bytes) -> tuple[str, str] | None:
    """What changed of which conversation, as a hint of a list says it; None where it is none of ours: a page makes
    addresses of these."""
    match = _CHANGE.fullmatch(hint)
    return (match[1].decode(), match[2].decode()) if match else None
