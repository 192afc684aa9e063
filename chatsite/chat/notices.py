"""The channels on which open pages hear that something changed. Hints only: listeners also look into Postgres, so
losing one costs time and nothing else.

A conversation's says that an answer begins in it, to its sockets; a person's says that the list of conversations, or a
mark in it, changed, to every window of theirs. Another of a person, and one of everybody, say that a stream should look
whether it may still go on: see `revoking`.
"""

from __future__ import annotations

from uuid import UUID

from inference import keys


def channel_of(conversation_id: UUID) -> str:
    return f"{keys.PREFIX}conversation:{conversation_id}"


STANDING_OF_ALL = f"{keys.PREFIX}standing"


def channel_of_standing(user_id: UUID) -> str:
    return f"{keys.PREFIX}standing:{user_id}"


def channel_of_list(user_id: UUID) -> str:
    return f"{keys.PREFIX}list:{user_id}"
