"""The channel on which open sockets of a conversation hear that an answer begins. Hints only: listeners also look into
Postgres, so losing one costs time and nothing else."""

from __future__ import annotations

from uuid import UUID

from inference import keys


def channel_of(conversation_id: UUID) -> str:
    return f"{keys.PREFIX}conversation:{conversation_id}"
