"""What workers advertise: their cards, which expire with the heartbeat, and the prompt kits of what they serve.

Workers announce and withdraw; web processes read who lives. Web nodes need no model file: the kit holds all that turns
messages into token ids. Redis's own errors pass through.
"""

from __future__ import annotations

import contextlib
import hashlib
from typing import Any

import redis
import structlog

from inference.coordination import redis_keys
from inference.errors import InvalidRequest
from inference.messages.cards import ModelCard, WorkerCard
from inference.messages.serialization import decode, encode

logger = structlog.get_logger(__name__)

KIT_TTL_SECONDS = 3_600  # after the last announcement that names it
MAX_WORKERS = 1_024  # that are read
MAX_CARD_BYTES = 256 * 1024
MAX_KIT_BYTES = 64 * 1024 * 1024  # as it lies there, compressed


class Registry:
    def __init__(self, client: redis.Redis) -> None:
        self._redis: Any = client

    def announce(self, card: WorkerCard, *, ttl_seconds: float = 6) -> bool:
        """Say that a worker lives, for `ttl_seconds`. False: its prompt kit is gone and must be stored again."""
        seconds, micros = self._redis.time()
        now_ms = seconds * 1000 + micros // 1000
        ttl_ms = int(ttl_seconds * 1000)
        with self._redis.pipeline(transaction=True) as pipeline:
            pipeline.set(redis_keys.worker(card.name), encode(card), px=ttl_ms)
            pipeline.zadd(redis_keys.WORKERS, {card.name: now_ms + ttl_ms})
            pipeline.zremrangebyscore(redis_keys.WORKERS, "-inf", now_ms)
            pipeline.pexpire(redis_keys.WORKERS, max(ttl_ms, 60_000))
            pipeline.expire(redis_keys.kit(card.model.prompt_kit), KIT_TTL_SECONDS)
            *_, has_kit = pipeline.execute()
        return bool(has_kit)

    def withdraw(self, name: str) -> None:
        with self._redis.pipeline(transaction=True) as pipeline:
            pipeline.delete(redis_keys.worker(name))
            pipeline.zrem(redis_keys.WORKERS, name)
            pipeline.execute()

    def workers(self) -> list[WorkerCard]:
        """Cards of the workers that live, by name."""
        names = names_of(self._redis.zrange(redis_keys.WORKERS, 0, MAX_WORKERS - 1))
        if not names:
            return []
        with self._redis.pipeline(transaction=False) as pipeline:
            queue_cards(pipeline, names)
            return cards_of(names, pipeline.execute(raise_on_error=False))

    def models(self) -> list[ModelCard]:
        """What live workers serve, by name; not what one is still loading."""
        return models_of(self.workers())

    def store_kit(self, kit: bytes) -> str:
        """Keep a prompt kit; returns its key, the sha256 in hex. The same kit twice is one kit."""
        digest = hashlib.sha256(kit).hexdigest()
        self._redis.set(redis_keys.kit(digest), kit, ex=KIT_TTL_SECONDS)
        return digest

    def kit(self, key: str) -> bytes | None:
        """None also where something lies in its place that is not the kit of that key."""
        kit: bytes = self._redis.getrange(redis_keys.kit(key), 0, MAX_KIT_BYTES)
        if not kit:
            return None
        if hashlib.sha256(kit).hexdigest() != key:
            logger.error("prompt_kit_forged", key=key)
            return None
        return kit


def names_of(members: list[bytes]) -> list[str]:
    """The names in a reply that lists workers, less those that no worker has."""
    names = []
    for member in members:
        with contextlib.suppress(UnicodeDecodeError):
            names.append(member.decode())
    return names


def queue_cards(pipeline: Any, names: list[str]) -> None:
    """Queue the commands whose replies `cards_of` reads. No more than a card's length of anything is asked for."""
    for name in names:
        pipeline.getrange(redis_keys.worker(name), 0, MAX_CARD_BYTES)


def cards_of(names: list[str], replies: list[bytes | Exception]) -> list[WorkerCard]:
    """The cards of those workers, by name. One that cannot be read is of a worker of another version, or no worker's:
    said, not shown."""
    cards = []
    for name, data in zip(names, replies, strict=True):
        if not data:
            continue
        try:
            if isinstance(data, Exception):
                raise InvalidRequest(str(data))
            if len(data) > MAX_CARD_BYTES:
                raise InvalidRequest(f"more than {MAX_CARD_BYTES:,} bytes")
            card = decode(data, WorkerCard)
            if card.name != name:
                raise InvalidRequest(f"it names {card.name!r}")
            card.model.sampling.check()
        except InvalidRequest as error:
            logger.warning("worker_card_unreadable", worker=name[:200], error=str(error)[:500])
        else:
            cards.append(card)
    return sorted(cards, key=lambda card: card.name)


def models_of(workers: list[WorkerCard]) -> list[ModelCard]:
    """Each model once, as the worker with the smallest window describes it, of these the one that started last.

    Any of its workers may answer, so no more can be promised than all of them hold.
    """
    serving = sorted(
        (card for card in workers if card.state != "loading"),
        key=lambda card: (-card.model.context_tokens, card.started_at),
    )
    cards = {card.model.name: card.model for card in serving}
    return [cards[name] for name in sorted(cards)]
