"""What workers advertise: their cards, which expire with the heartbeat, and the prompt kits of what they serve.

Workers announce and withdraw; web processes read who lives. Web nodes need no model file: the kit holds all that turns
messages into token ids. Redis's own errors pass through.
"""

from __future__ import annotations

import hashlib
from typing import Any

import redis
import structlog

from inference import keys
from inference.cards import ModelCard, WorkerCard
from inference.errors import InvalidRequest
from inference.wire import decode, encode

logger = structlog.get_logger(__name__)

KIT_TTL_SECONDS = 3_600  # after the last announcement that names it


class Registry:
    def __init__(self, client: redis.Redis) -> None:
        self._redis: Any = client

    def announce(self, card: WorkerCard, *, ttl_seconds: float = 6) -> bool:
        """Say that a worker lives, for `ttl_seconds`. False: its prompt kit is gone and must be stored again."""
        seconds, micros = self._redis.time()
        now_ms = seconds * 1000 + micros // 1000
        ttl_ms = int(ttl_seconds * 1000)
        with self._redis.pipeline(transaction=True) as pipeline:
            pipeline.set(keys.worker(card.name), encode(card), px=ttl_ms)
            pipeline.zadd(keys.WORKERS, {card.name: now_ms + ttl_ms})
            pipeline.zremrangebyscore(keys.WORKERS, "-inf", now_ms)
            pipeline.pexpire(keys.WORKERS, max(ttl_ms, 60_000))
            pipeline.expire(keys.kit(card.model.prompt_kit), KIT_TTL_SECONDS)
            *_, has_kit = pipeline.execute()
        return bool(has_kit)

    def withdraw(self, name: str) -> None:
        with self._redis.pipeline(transaction=True) as pipeline:
            pipeline.delete(keys.worker(name))
            pipeline.zrem(keys.WORKERS, name)
            pipeline.execute()

    def workers(self) -> list[WorkerCard]:
        """Cards of the workers that live, by name."""
        names = self._redis.zrange(keys.WORKERS, 0, -1)
        if not names:
            return []
        return cards_of(self._redis.mget([keys.worker(name.decode()) for name in names]))

    def models(self) -> list[ModelCard]:
        """What live workers serve, by name; not what one is still loading."""
        return models_of(self.workers())

    def store_kit(self, kit: bytes) -> str:
        """Keep a prompt kit; returns its key, the sha256 in hex. The same kit twice is one kit."""
        digest = hashlib.sha256(kit).hexdigest()
        self._redis.set(keys.kit(digest), kit, ex=KIT_TTL_SECONDS)
        return digest

    def kit(self, key: str) -> bytes | None:
        kit: bytes | None = self._redis.get(keys.kit(key))
        return kit


def cards_of(replies: list[bytes | None]) -> list[WorkerCard]:
    """The cards among `replies`, by name. One that cannot be read is a worker of another version: said, not shown."""
    cards = []
    for data in replies:
        if data is None:
            continue
        try:
            cards.append(decode(data, WorkerCard))
        except InvalidRequest as error:
            logger.warning("worker_card_unreadable", error=str(error))
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
