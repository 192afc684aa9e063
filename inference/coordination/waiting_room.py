"""Who waits for which model: enter, claim, release, and how long it may still take.

Each operation is one script in Redis, so any number of processes may call it; the rules of fairness are written where
they are kept, in `lua/prelude.lua` and `lua/claim.lua`. Web processes and the sweeper enter, worker threads claim and
release. Does not know Celery: whoever lets someone in rings the doorbell. Redis's own errors pass through.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import redis

from inference.config import InferenceConfig
from inference.coordination import redis_keys
from inference.coordination.fair_cost import estimated_cost
from inference.coordination.redis_client import Scripts, active_ttl_ms
from inference.errors import InvalidRequest, LogUnreadable
from inference.messages.generation import GenerationRequest, Standing
from inference.messages.serialization import PROTOCOL_VERSION, decode, encode

PREFIX_TTL_MS = 1_800_000  # a conversation that rested this long has hardly kept its prefix anywhere


@dataclass(frozen=True)
class Claim:
    """The right to work on `request` until the lease lapses. `num_lost` attempts before this one died."""

    request: GenerationRequest
    ticket: str
    mark: str
    num_lost: int


@dataclass(frozen=True)
class Later:
    """Someone waits, but first for another worker that holds their prefix: ask again in `wait_ms`."""

    wait_ms: int


STANDING_FACTS = 11


class WaitingRoom:
    def __init__(self, client: redis.Redis, config: InferenceConfig) -> None:
        self._redis: Any = client
        self._scripts = Scripts(client)
        self._config = config
        self._ttl_ms = active_ttl_ms(config)

    def enter(self, request: GenerationRequest) -> bool:
        """Let it wait; a request that Redis does not know gets a log of its own. Then ring.

        Returns False, and changes nothing, when it waits, is leased or has finished already.
        """
        return bool(self._scripts.run("enter", *enter_arguments(request, self._ttl_ms)))

    def reenter(self, generation_id: UUID) -> bool:
        """As `enter`, for a request that Redis holds; False also when it holds none."""
        return bool(self._scripts.run("enter", self._ttl_ms, str(generation_id), ""))

    def claim(self, model: str, worker: str) -> Claim | Later | None:
        """The fairest of those who wait for `model`, under a new ticket; None when nobody does.

        Raises:
            InvalidRequest: what waits was written by a newer version. That attempt counts as lost.
        """
        ticket = uuid4().hex
        reply = self._scripts.run(
            "claim",
            self._ttl_ms,
            model,
            worker,
            ticket,
            int(self._config.lease_seconds * 1000),
            self._config.prefix_wait_ms,
            PREFIX_TTL_MS,
        )
        if reply is None:
            return None
        if reply[0] == b"later":
            return Later(wait_ms=int(reply[1]))
        _, data, mark, num_lost, generation_id = reply
        try:
            request = decode(data, GenerationRequest)
            if request.version > PROTOCOL_VERSION:
                raise InvalidRequest(f"a request of version {request.version}; this worker reads {PROTOCOL_VERSION}.")
        except InvalidRequest:
            self._scripts.run("lapse", self._ttl_ms, generation_id, 1, "")
            raise
        return Claim(request=request, ticket=ticket, mark=mark.decode(), num_lost=int(num_lost))

    def release(self, generation_id: UUID, ticket: str) -> bool:
        """Give it back, to be claimed before all others; not a lost attempt. Then ring. False: the ticket is void."""
        return bool(self._scripts.run("release", self._ttl_ms, str(generation_id), ticket))

    def standing(self, generation_id: UUID) -> Standing:
        """Where it stands; position and estimate are good guesses, never promises."""
        return standing_of(self._scripts.run("standing", self._ttl_ms, str(generation_id)))

    def num_waiting(self, model: str) -> int:
        return int(self._redis.zcard(redis_keys.order(model)))

    def num_unfinished(self, model: str) -> int:
        """All that wait for the model or are being answered, by whichever worker."""
        with self._redis.pipeline(transaction=True) as pipeline:
            pipeline.zcard(redis_keys.order(model))
            pipeline.zrange(redis_keys.LEASES, 0, -1)
            num_waiting, leased = pipeline.execute()
        if not leased:
            return int(num_waiting)
        with self._redis.pipeline(transaction=False) as pipeline:
            for member in leased:
                pipeline.hget(redis_keys.generation(member.decode()), "model")
            models: list[bytes | None] = pipeline.execute()
        return int(num_waiting) + models.count(model.encode())

    def waiting_since(self, model: str) -> float | None:
        """Seconds the eldest waits; None when nobody does."""
        with self._redis.pipeline(transaction=True) as pipeline:
            pipeline.time()
            # What was released stands below zero, before all others; it has hardly begun to wait again.
            pipeline.zrange(redis_keys.order(model), "0", "+inf", byscore=True, offset=0, num=1, withscores=True)
            pipeline.zcard(redis_keys.order(model))
            (seconds, micros), eldest, num_waiting = pipeline.execute()
        if not eldest:
            return 0.0 if num_waiting else None
        return max(0.0, float(seconds + micros / 1e6 - eldest[0][1] / 1000))


def enter_arguments(request: GenerationRequest, ttl_ms: int) -> tuple[str | bytes | int, ...]:
    """What the `enter` script takes, with the mark the log gets if there is none yet."""
    return (
        ttl_ms,
        str(request.id),
        encode(request),
        uuid4().hex,
        request.model,
        request.user_key,
        request.conversation_key,
        max(0, request.priority),
        estimated_cost(request),
    )


def standing_of(reply: list[Any]) -> Standing:
    """The Standing that the `standing` script's reply tells. Raises LogUnreadable: facts in Redis that are none."""
    if reply[0] == b"unknown":
        return Standing(state="unknown")
    if len(reply) != STANDING_FACTS:  # Lua's table ends where a number is none
        raise LogUnreadable("What Redis has of a generation is none.")
    state, position, num_waiting, waited_ms, worker, num_lost, stop, recorded, service_ms, num_slots, num_free = reply
    eta_seconds = None
    if state == b"waiting" and service_ms >= 0 and num_slots:
        eta_seconds = max(0, position - num_free) * service_ms / 1000 / num_slots
    return Standing(
        state=state.decode(),
        position=position,
        num_waiting=num_waiting,
        eta_seconds=eta_seconds,
        worker=worker.decode(),
        num_lost=num_lost,
        stop_requested=bool(stop),
        is_recorded=bool(recorded),
        waited_seconds=waited_ms / 1000,
    )
