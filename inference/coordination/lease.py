"""Who works on a generation: renewing leases, and taking away those that lapsed.

A lease is a time; the ticket is the right to write. A lapse takes the first and leaves the second until someone else
claims, so a worker that was only slow goes on as if nothing had happened. Workers renew, and give up what they cannot
go on with; the sweeper lapses. Redis's own errors pass through.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import redis

from inference.config import InferenceConfig
from inference.coordination import redis_keys
from inference.coordination.redis_client import Scripts, active_ttl_ms


@dataclass(frozen=True)
class Renewal:
    """`held`: the lease goes on. Else it lapsed or was taken; writing shows whether the ticket still counts."""

    held: bool
    stop: bool


class Leases:
    def __init__(self, client: redis.Redis, config: InferenceConfig) -> None:
        self._redis: Any = client
        self._scripts = Scripts(client)
        self._lease_ms = int(config.lease_seconds * 1000)
        self._ttl_ms = active_ttl_ms(config)

    def renew(self, held: Sequence[tuple[UUID, str]]) -> list[Renewal]:
        """Extend the leases of `held` (generation, ticket), in one round trip; call it every third of a lease."""
        if not held:
            return []
        calls = [(self._ttl_ms, str(generation_id), ticket, self._lease_ms) for generation_id, ticket in held]
        renewals = []
        for reply in self._scripts.run_all("renew", calls):
            if isinstance(reply, Exception):
                raise reply
            renewals.append(Renewal(held=bool(reply[0]), stop=bool(reply[1])))
        return renewals

    def lapse(self, generation_id: UUID, *, force: bool = False) -> bool:
        """Take an expired lease away (with `force` also one that is not), as a lost attempt. False: there is none."""
        return bool(self._scripts.run("lapse", self._ttl_ms, str(generation_id), int(force), ""))

    def give_up(self, generation_id: UUID, ticket: str) -> bool:
        """Lapse one's own lease before its time: a lost attempt, but nobody has to wait for it. False: another's."""
        return bool(self._scripts.run("lapse", self._ttl_ms, str(generation_id), 1, ticket))

    def expired(self) -> list[UUID]:
        """Generations whose lease has run out and was not taken away yet, the longest first."""
        seconds, micros = self._redis.time()
        now_ms = seconds * 1000 + micros // 1000
        return [UUID(member.decode()) for member in self._redis.zrangebyscore(redis_keys.LEASES, "-inf", now_ms)]
