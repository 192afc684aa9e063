"""The face of inference for the web and the site worker: submit, stop, follow, sweep, and what is served.

Puts the waiting room, the log, the registry and the doorbell together, and turns "Redis cannot be reached" into
StoreUnavailable. Knows nothing of Django or Postgres; what is durable is the caller's. The sync client may be used from
any thread, the async one from one event loop.
"""

from __future__ import annotations

import asyncio
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec
import redis
import redis.asyncio
import structlog

from inference import celery
from inference.config import InferenceConfig, load
from inference.coordination import event_log, redis_keys, registry, swap_orders, waiting_room
from inference.coordination.log_view import Log
from inference.coordination.redis_client import (
    AsyncScripts,
    Scripts,
    active_ttl_ms,
    connect,
    connect_async,
    connect_async_for_reading,
    connect_for_reading,
    reaching,
)
from inference.errors import InvalidRequest, LogUnreadable, ModelNotServed, PromptTooLong, StoreUnavailable
from inference.messages.cards import ModelCard, WorkerCard
from inference.messages.generation import (
    ErrorFacts,
    Event,
    Finish,
    FinishReason,
    GenerationRequest,
    SamplingParams,
    Standing,
)
from inference.messages.swap import SwapOrder, SwapReport

if TYPE_CHECKING:
    from inference.prompt.builder import PromptBuilder

logger = structlog.get_logger(__name__)

RING_AGAIN_MS = 2_000  # a generation that waits this long since its last bell may have lost it
SCANNED_KEYS = 1_000  # in one round trip of a look at all keys; Redis serves others in between
MAX_BUILDERS = 4  # prompt builders kept per process; a tokenizer takes some ten MB
_COUNTS = {1: "once", 2: "twice", 3: "three times"}


class CheckedPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt as the model would get it: its tokens, how many of the request's messages (the oldest, in whole turns)
    it would no longer see, and the tokens of the window, which prompt and answer share. `warnings` are sentences about
    what its calls are not held to."""

    num_tokens: int
    num_dropped_messages: int
    context_tokens: int
    warnings: tuple[str, ...] = ()


class Swept(StrEnum):
    """What the sweeper found in Redis, or did there."""

    UNKNOWN = "unknown"  # the caller: stop requested -> stopped in the database, else submit afresh
    FINISHED = "finished"  # the caller records
    ENDED = "ended"  # just now, for a stop or after too many lost attempts; the caller records
    ENTERED = "entered"  # waits again after a lost attempt, and the bell rang
    RANG = "rang"  # waited long; the bell rang again
    WAITING = "waiting"
    NUDGED = "nudged"  # its worker was told to stop
    RUNNING = "running"


def stopped() -> Finish:
    """The end of a generation that its user stopped while no worker had it."""
    return Finish(reason=FinishReason.CANCELLED)


def lost(max_attempts: int) -> Finish:
    """The end of a generation whose attempts all died."""
    times = _COUNTS.get(max_attempts, f"{max_attempts} times")
    message = f"The worker stopped {times} while writing this answer."
    return Finish(reason=FinishReason.ERROR, error=ErrorFacts(code="worker_lost", message=message, retryable=True))


class InferenceClient:
    """`config` None: the process's own settings. `redis` is the client for writes; nothing it does is retried."""

    def __init__(self, config: InferenceConfig | None = None, *, ring_again_ms: int = RING_AGAIN_MS) -> None:
        self._ring_again_ms = ring_again_ms
        self._app = celery.app if config is None else celery.producer(config)
        self._config = config = config or load()
        self.redis: redis.Redis = connect(config)
        reading = connect_for_reading(config)
        self._scripts = Scripts(self.redis)
        self._room = waiting_room.WaitingRoom(self.redis, config)
        self._log = event_log.EventLog(self.redis, config)
        self._standings = waiting_room.WaitingRoom(reading, config)
        self._logs = event_log.EventLog(reading, config)
        self._registry = registry.Registry(reading)
        self._orders = swap_orders.Orders(self.redis)
        self._reading = reading
        self._ttl_ms = active_ttl_ms(config)
        self._builders: dict[str, PromptBuilder] = {}

    def close(self) -> None:
        """Give all connections back. Called once."""
        self.redis.close()
        self._reading.close()
        if self._app is not celery.app:
            self._app.close()

    def submit(self, request: GenerationRequest) -> None:
        """Let the request wait and ring. Twice is once.

        Raises:
            StoreUnavailable: it may or may not have entered; the sweeper finds out.
        """
        with reaching():
            self._room.enter(request)
        self.ring(request.model)

    def ring(self, model: str) -> None:
        """Tell the workers of `model` that someone waits. Raises StoreUnavailable."""
        celery.ring(model, app=self._app)

    def cancel(self, generation_id: UUID) -> None:
        """Redis's part of a stop, after the database's: end it if it waits, tell its worker if one has it.

        Raises:
            StoreUnavailable: the sweeper does it.
        """
        with reaching(), event_log.expecting_a_log(generation_id):
            outcome = self._scripts.run("stop", self._ttl_ms, str(generation_id), event_log.finish_event(stopped()))
        if outcome == b"ended":
            celery.send_record(generation_id, app=self._app)

    def end(self, generation_id: UUID, finish: Finish) -> bool:
        """End it without a worker; the site worker is asked to record. False: finished already, or unknown."""
        with reaching():
            has_ended = self._log.end(generation_id, finish)
        if has_ended:
            celery.send_record(generation_id, app=self._app)
        return has_ended

    def standing(self, generation_id: UUID) -> Standing:
        """Raises LogUnreadable, StoreUnavailable."""
        with reaching(), event_log.expecting_a_log(generation_id):
            return self._standings.standing(generation_id)

    def read(self, generation_id: UUID, after: int = 0) -> Log:
        """Raises EventsExpired when Redis does not know it, StoreUnavailable."""
        with reaching():
            return self._logs.read(generation_id, after)

    def record(self, generation_id: UUID) -> bool:
        """Append `recorded`, after the commit. False: it is there, nothing finished, or unknown.

        Raises LogUnreadable: it cannot be told there.
        """
        with reaching(), event_log.expecting_a_log(generation_id):
            return self._log.record(generation_id)

    def workers(self) -> list[WorkerCard]:
        with reaching():
            return self._registry.workers()

    def models(self) -> list[ModelCard]:
        with reaching():
            return self._registry.models()

    def order_swap(self, worker: str, order: SwapOrder) -> bool:
        """Tell a worker to serve another model. False: it is being told so already, and nothing has changed."""
        with reaching():
            return self._orders.give(worker, order)

    def swap_report(self, order_id: UUID) -> SwapReport | None:
        """How far the worker is with that order; None before it took it."""
        with reaching():
            return self._orders.report_of(order_id)

    def withdraw_swap(self, worker: str, order_id: UUID) -> None:
        """Take an order back that the worker has not taken. Nothing happens when it is gone already."""
        with reaching():
            self._orders.take_away(worker, order_id)

    def is_reachable(self) -> bool:
        try:
            with reaching():
                return bool(self.redis.ping())
        except StoreUnavailable:
            return False

    def check_prompt(self, request: GenerationRequest) -> CheckedPrompt:
        """What the request's prompt will be, by the kit that its model's workers advertise.

        Raises:
            PromptTooLong: it leaves no room for an answer. InvalidRequest: the template refuses the messages, the
            answer's schema (or a tool's) cannot be followed, or a bias names a token that the model lacks.
            ModelNotServed: no live worker serves that model. StoreUnavailable.
        """
        with reaching():
            card = next((card for card in self._registry.models() if card.name == request.model), None)
            builder = self._builder(card.prompt_kit) if card else None
        if card is None or builder is None:
            raise ModelNotServed(f"No worker serves {request.model} now.", model=request.model)
        self._check_sampling(request.sampling, vocab_size=builder.tokenizer.vocab_size)
        warnings: tuple[str, ...] = ()
        if request.may_call:
            from inference.grammar import tool_grammar  # here: only who checks prompts needs the library

            warnings = tool_grammar.check(msgspec.structs.replace(request, tool_dialect=builder.dialect_of(request)))
        prompt = builder.build(request)
        num_tokens = len(prompt.tokens)
        if num_tokens >= card.context_tokens:
            raise PromptTooLong(
                prompt_tokens=num_tokens, limit_tokens=card.context_tokens - 1, context_tokens=card.context_tokens
            )
        return CheckedPrompt(
            num_tokens=num_tokens,
            num_dropped_messages=prompt.num_dropped_messages,
            context_tokens=card.context_tokens,
            warnings=warnings,
        )

    @staticmethod
    def held(sampling: SamplingParams, *, is_strict: bool) -> tuple[SamplingParams, tuple[str, ...]]:
        """With a schema that an answer can be held to, and what is to be said of those keywords that it cannot follow.

        Raises:
            InvalidRequest: it cannot be held to the schema at all, or (`is_strict`) not to every keyword.
        """
        if sampling.json_schema is None:
            return sampling, ()
        from inference.grammar.relaxation import relaxed  # here: only who checks prompts needs the library

        held = relaxed(sampling.json_schema, is_strict=is_strict)
        warnings = tuple(filter(None, [held.warning("The answer")]))
        return msgspec.structs.replace(sampling, json_schema=held.schema), warnings

    @staticmethod
    def _check_sampling(sampling: SamplingParams, *, vocab_size: int) -> None:
        """What of it only a model's kit or the grammar library can tell."""
        beyond = next((token for token in sampling.logit_bias or () if token >= vocab_size), None)
        if beyond is not None:
            raise InvalidRequest(
                f"logit_bias: this model has no token {beyond}; its last is {vocab_size - 1}.", param="logit_bias"
            )
        if sampling.json_schema is not None:
            from inference.grammar import json_schema  # here: only who checks prompts needs the library

            json_schema.check(sampling.json_schema)

    def _builder(self, key: str) -> PromptBuilder | None:
        """The builder of a kit, made once per process and kit; None when Redis has lost the kit."""
        from inference.prompt.builder import PromptBuilder  # here: only who counts tokens needs the tokenizer
        from inference.prompt.kit import PromptKit

        builder = self._builders.get(key)
        if builder is None:
            data = self._registry.kit(key)
            if data is None:
                return None
            builder = PromptBuilder(PromptKit.from_bytes(data))
            for stale in list(self._builders)[: 1 - MAX_BUILDERS]:
                self._builders.pop(stale, None)
            self._builders[key] = builder
        return builder

    def sweep(self, generation_id: UUID, *, stop_requested: bool) -> Swept:
        """Redis's part of the sweeper, for one row that the database calls active. See Swept for the caller's part.

        Raises:
            LogUnreadable: no worker of ours left it so; the caller ends it and forgets it.
            StoreUnavailable: nothing is lost, sweep again.
        """
        with reaching(), event_log.expecting_a_log(generation_id):
            verdict, model = self._scripts.run(
                "sweep",
                self._ttl_ms,
                str(generation_id),
                int(stop_requested),
                event_log.finish_event(stopped()),
                event_log.finish_event(lost(self._config.max_attempts)),
                self._config.max_attempts,
                self._ring_again_ms,
                redis_keys.bells(""),
            )
        swept = Swept(verdict.decode())
        if swept in (Swept.ENTERED, Swept.RANG):
            self.ring(model.decode())
        if swept in (Swept.ENTERED, Swept.ENDED):
            logger.info("swept", generation_id=str(generation_id), verdict=swept.value)
        return swept

    def forget(self, generation_id: UUID) -> None:
        """Delete request, log and everything else that Redis keeps of it, wherever it stands."""
        with reaching():
            try:
                with event_log.expecting_a_log(generation_id):
                    self._scripts.run("forget", self._ttl_ms, str(generation_id))
            except LogUnreadable:
                self.redis.delete(redis_keys.generation(generation_id), redis_keys.log(generation_id))

    @property
    def kept_seconds(self) -> float:
        """So long after its end Redis may still have something of a generation."""
        return self._ttl_ms / 1000

    def forget_user(self, user_key: str) -> int:
        """Delete every key in whose name the user stands, and their marks in every waiting room; how many there were.

        Called once nothing of theirs waits any more. Looks at every key that this site has in Redis, some thousands at
        a time: for the rare occasion of an account that goes. What enters meanwhile expires by itself.

        Raises:
            StoreUnavailable: some may be left; each expires, or goes when its waiting room moves on.
        """
        num_gone = 0
        with reaching():
            for found in self.redis.scan_iter(match=f"{redis_keys.PREFIX}*", count=SCANNED_KEYS):
                key = found.decode(errors="replace")
                if user_key in key:
                    num_gone += int(self.redis.delete(found))
                elif key.startswith(redis_keys.ROOMS) and key.endswith((":users", ":served")):
                    num_gone += int(self.redis.zrem(found, user_key))
                elif key.startswith(redis_keys.ROOMS) and key.endswith(":running"):
                    num_gone += int(self.redis.hdel(found, user_key))
        return num_gone


class AsyncInferenceClient:
    """What consumers need, on their event loop. `redis` may be used for subscribing."""

    def __init__(self, config: InferenceConfig | None = None) -> None:
        self._app = celery.app if config is None else celery.producer(config)
        config = config or load()
        self.redis: redis.asyncio.Redis = connect_async(config)
        self._reading: Any = connect_async_for_reading(config)
        self._scripts = AsyncScripts(self.redis)
        self._reading_scripts = AsyncScripts(self._reading)
        self._ttl_ms = active_ttl_ms(config)

    async def aclose(self) -> None:
        """Give all connections back. Called once, on the loop that used them."""
        await self.redis.aclose()
        await self._reading.aclose()
        if self._app is not celery.app:
            self._app.close()

    @staticmethod
    def news_channel(generation_id: UUID) -> str:
        """The channel on which every entry of the generation's log is published as it is written."""
        return redis_keys.news(generation_id)

    @staticmethod
    def parse_news(payload: bytes) -> tuple[str, Event]:
        """Mark and event of one message of that channel. Raises InvalidRequest."""
        return event_log.parse_news(payload)

    async def standing(self, generation_id: UUID) -> Standing:
        """As InferenceClient.standing."""
        with reaching(), event_log.expecting_a_log(generation_id):
            reply = await self._reading_scripts.run("standing", self._ttl_ms, str(generation_id))
        return waiting_room.standing_of(reply)

    async def read(self, generation_id: UUID, after: int = 0) -> Log:
        """Raises EventsExpired when Redis does not know it, StoreUnavailable."""
        with reaching(), event_log.expecting_a_log(generation_id):
            async with self._reading.pipeline(transaction=True) as pipeline:
                event_log.queue_read(pipeline, generation_id, after)
                mark, entries = await pipeline.execute()
        return event_log.log_of(generation_id, mark, entries)

    async def workers(self) -> list[WorkerCard]:
        with reaching():
            names = registry.names_of(await self._reading.zrange(redis_keys.WORKERS, 0, registry.MAX_WORKERS - 1))
            if not names:
                return []
            async with self._reading.pipeline(transaction=False) as pipeline:
                registry.queue_cards(pipeline, names)
                return registry.cards_of(names, await pipeline.execute(raise_on_error=False))

    async def models(self) -> list[ModelCard]:
        return registry.models_of(await self.workers())

    async def cancel(self, generation_id: UUID) -> None:
        """As InferenceClient.cancel."""
        with reaching(), event_log.expecting_a_log(generation_id):
            event = event_log.finish_event(stopped())
            outcome = await self._scripts.run("stop", self._ttl_ms, str(generation_id), event)
        if outcome == b"ended":
            await asyncio.to_thread(partial(celery.send_record, generation_id, app=self._app))

    async def is_reachable(self) -> bool:
        try:
            with reaching():
                pong: Any = self.redis.ping()
                return bool(await pong)
        except StoreUnavailable:
            return False
