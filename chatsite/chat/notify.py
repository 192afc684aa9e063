"""News for open pages, over Redis: an answer begins, a list changed, a stream should look whether it may go on.

Hints only: whoever listens also looks into Postgres, so one that is lost costs time and nothing else, and nothing of a
conversation's content travels here. A conversation's channel tells its sockets, a person's list channel every window of
theirs; the standing channels tell streams, see `streams.revocation`.
"""

from __future__ import annotations

import functools
import re
from enum import StrEnum
from uuid import UUID

import redis
import structlog
from django.db import transaction

from chatsite.chat.inference import unless_away
from chatsite.chat.models import Conversation
from inference.client import InferenceClient
from inference.coordination import redis_keys
from inference.errors import StoreUnavailable

log = structlog.get_logger(__name__)

_CHANGE = re.compile(rb"([a-z]{1,20}) ([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
STANDING_OF_ALL = f"{redis_keys.PREFIX}standing"


class Change(StrEnum):
    BEGAN = "began"  # an answer is being written
    ENDED = "ended"
    SEEN = "seen"  # ... or marked as not
    NAMED = "named"
    MOVED = "moved"  # pinned, archived, tagged, or back
    GONE = "gone"


def tell(user_id: UUID, conversation_id: UUID, change: Change) -> None:
    """Say it once the transaction is committed; at once outside of one."""
    transaction.on_commit(functools.partial(tell_windows, user_id, conversation_id, change.value), robust=True)


def answer_ended(generation_id: UUID) -> None:
    """An answer of the chat has ended: its conversation is unread until somebody looks. Nothing for one without."""
    rows = Conversation.objects.filter(messages__generation__pk=generation_id)
    for pk, owner_id in rows.values_list("pk", "owner_id"):
        Conversation.objects.filter(pk=pk).update(is_unread=True)
        tell(owner_id, pk, Change.ENDED)


# -- channels


def channel_of(conversation_id: UUID) -> str:
    return f"{redis_keys.PREFIX}conversation:{conversation_id}"


def channel_of_standing(user_id: UUID) -> str:
    return f"{redis_keys.PREFIX}standing:{user_id}"


def channel_of_list(user_id: UUID) -> str:
    return f"{redis_keys.PREFIX}list:{user_id}"


def change_of(hint: bytes) -> tuple[str, str] | None:
    """What changed of which conversation, as a hint of a list says it; None where it is none of ours: a page makes
    addresses of these."""
    match = _CHANGE.fullmatch(hint)
    return (match[1].decode(), match[2].decode()) if match else None


# -- telling at once


def tell_conversation(conversation_id: UUID, generation_id: UUID) -> None:
    """Nudge open sockets of a conversation that an answer begins. A hint only: they also look for themselves."""
    _publish(channel_of(conversation_id), str(generation_id))


def tell_windows(user_id: UUID, conversation_id: UUID, change: str) -> None:
    """Nudge a person's open windows that a row of their list changed. A hint only, as above."""
    _publish(channel_of_list(user_id), f"{change} {conversation_id}")


def tell_streams(user_id: UUID | None) -> None:
    """Let the open streams of a person, or of everybody, look whether they may go on. A hint only, as above."""
    _publish(channel_of_standing(user_id) if user_id else STANDING_OF_ALL, "look")


def _publish(channel: str, hint: str) -> None:
    def publish(client: InferenceClient) -> None:
        try:
            client.redis.publish(channel, hint)
        except redis.RedisError as error:
            raise StoreUnavailable("Redis could not be reached.") from error

    try:
        unless_away(publish)
    except StoreUnavailable:
        log.info("nobody told", hint=hint)
