"""A GPU worker's life inside Celery: choose the model, load it, serve, drain.

Owns the bootstep (between pool and consumer, so no message is taken before the model answers), queue and concurrency,
and the signals. Knows nothing of single generations. Celery's `-A inference.celery` includes it through
`worker.tasks`; everything here runs in the main thread. The loading itself has a thread of its own (`load_model`),
so that a signal is heard meanwhile.

Queue and concurrency come from the catalog entry and the settings when the command line names none: a bare
`celery -A inference.celery worker -P threads` consumes `generate.<model>` with one thread per slot.

Celery's own handlers of TERM, INT and QUIT are replaced: its cold shutdown waits inside a signal handler for threads
it cannot stop. Here the first signal drains and the second hands everything on at once.

An order to serve another model ends here too (`swap_model` prepares it): the consumer is stopped as for a signal,
and in place of the process's end comes a fresh image of it with the new MODEL. If that cannot load it, one more image
follows with the old MODEL.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any, NoReturn

import msgspec
import prometheus_client
import structlog
from celery import bootsteps, signals
from celery.worker import state as celery_state
from redis.exceptions import RedisError

from inference import celery as celery_module
from inference import config as configuration
from inference import metrics
from inference.catalog import Catalog, CatalogEntry
from inference.config import InferenceConfig
from inference.coordination import redis_keys
from inference.coordination.redis_client import connect
from inference.coordination.registry import Registry
from inference.coordination.swap_orders import Orders
from inference.coordination.waiting_room import WaitingRoom
from inference.errors import InferenceError
from inference.messages.cards import ModelCard, WorkerCard
from inference.messages.swap import SwapOrder
from inference.worker.process import reexec
from inference.worker.process.load_model import Loading
from inference.worker.process.reexec import Handover
from inference.worker.process.runtime import Runtime
from inference.worker.process.swap_model import Swapping
from inference.worker.threads.heartbeat import Heartbeat

log = structlog.get_logger(__name__)

SWITCH_SECONDS = 0.001  # longest turn of a thread with the interpreter while others wait

STORE_RETRY_SECONDS = 1.0
LOOK_SECONDS = 0.2  # how soon a signal is noticed while the model loads
NEXT_IMAGE_SECONDS = 30.0  # until the next image of the process says itself that it lives


@dataclass(frozen=True, kw_only=True)
class _Chosen:
    config: InferenceConfig
    entry: CatalogEntry
    handover: Handover | None
    has_own_queues: bool


_runtime: Runtime | None = None
_chosen: _Chosen | None = None


def runtime() -> Runtime:
    """The process's runtime. Tasks run only after the model was loaded."""
    assert _runtime is not None, "a task before the model was loaded"
    return _runtime


def set_up_logging(loglevel: int | str | None = None, **_: Any) -> None:
    """Celery's and libraries' lines go where ours go."""
    logging.basicConfig(level=loglevel or logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")


def choose_model(instance: Any, conf: Any, options: dict[str, Any], **_: Any) -> None:
    """Before the pool is made: read the settings, find the catalog entry, set concurrency and queue by it."""
    global _chosen
    try:
        config = configuration.load()
        handover = reexec.handover_of(config)
    except InferenceError as error:
        _fail(error)
    try:
        entry = Catalog.of(config).entry(config.model)
    except InferenceError as error:
        _go_back(config, handover, error.message, is_asked_to_stop=lambda: False)
        _fail(error)
    has_own_queues = bool(options.get("queues"))
    _chosen = _Chosen(config=config, entry=entry, handover=handover, has_own_queues=has_own_queues)
    conf.worker_concurrency = config.slots or entry.slots
    if not has_own_queues:
        instance.app.amqp.queues.select([redis_keys.queue(entry.name)])


class ModelStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Loads the model before the consumer starts; drains after it has stopped and before the pool does."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        super().__init__(parent, **kwargs)
        self.num_stop_signals = 0
        self._runtime: Runtime | None = None
        self._started_at = time.time()
        self._notes: tuple[str, ...] = ()
        self._degradations: tuple[str, ...] = ()
        self._device = ""

    def start(self, parent: Any) -> None:
        assert _chosen is not None
        if not parent.pool_cls.__module__.endswith((".thread", ".solo")):
            _fail("A worker holds its model in one process: start it with -P threads.")
        self._config, entry, self._handover = _chosen.config, _chosen.entry, _chosen.handover
        self._redis = connect(self._config)
        self._registry = Registry(self._redis)
        self._model = ModelCard(
            name=entry.name,
            title=entry.title,
            architecture="",
            context_tokens=self._config.context_tokens or entry.context_tokens,
            prompt_kit="",
        )
        self._num_slots = self._config.slots or entry.slots
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, self._on_stop_signal)
        if self._config.metrics_port:
            self._serve_metrics(self._config.metrics_port)
        # Python lets a thread compute for 5 ms before another gets its turn, which is most of a step on a GPU.
        sys.setswitchinterval(SWITCH_SECONDS)
        self._swapping = Swapping(
            self._config,
            entry.name,
            orders=Orders(self._redis),
            room=WaitingRoom(self._redis, self._config),
            registry=self._registry,
            announce=lambda: self._heartbeat.announce(),
            go=self._stop_consuming,
            order_id=self._handover.order if self._handover else None,
            has_own_queues=_chosen.has_own_queues,
        )
        self._heartbeat = Heartbeat(self._registry, self._card, look=self._swapping.look)
        self._heartbeat.start()
        self._start_runtime(entry)

    def stop(self, parent: Any) -> None:
        """Warm shutdown: the consumer has stopped already."""
        global _runtime
        if self._runtime is None:
            return
        if self.num_stop_signals:
            self._swapping.end()
        self._runtime.drain(self._config.drain_seconds, is_hurried=lambda: self.num_stop_signals > 1)
        if self._swapping.going is not None and not self.num_stop_signals:
            self._become(self._swapping.going)
        self._swapping.end()
        self._heartbeat.withdraw()
        self._runtime.stop()
        self._runtime = _runtime = None
        self._redis.close()
        log.info("worker_stopped")

    terminate = stop

    def _on_stop_signal(self, number: int, frame: FrameType | None) -> None:
        # Plain assignments alone: the main thread may hold any lock right now.
        self.num_stop_signals += 1
        if self._runtime is not None:
            self._runtime.accepts = False
        celery_state.should_stop = os.EX_OK

    def _stop_consuming(self) -> None:
        celery_state.should_stop = os.EX_OK

    def _become(self, order: SwapOrder) -> None:
        """Go on as a fresh image with the model that was ordered. Returns when it was asked to stop instead."""
        assert self._runtime is not None
        self._heartbeat.stop()
        card = self._card()
        model = msgspec.structs.replace(card.model, name=card.next_model, title=card.next_model, prompt_kit="")
        card = msgspec.structs.replace(card, model=model, next_model="", state="loading", num_free_slots=0)
        try:
            self._registry.announce(card, ttl_seconds=NEXT_IMAGE_SECONDS)
        except RedisError as error:  # the next image does it
            log.warning("card_not_announced", error=type(error).__name__)
        self._swapping.is_loading(card.model.name)
        self._runtime.stop()
        handover = Handover(order=order.id, previous=self._config.model or self._model.name)
        _replace_process(order.model, handover, self._config, is_asked_to_stop=lambda: bool(self.num_stop_signals))

    def _serve_metrics(self, port: int) -> None:
        try:
            prometheus_client.start_http_server(port)
        except OSError as error:
            _fail(f"WORKER_METRICS_PORT {port} cannot be used: {error.strerror}.")

    def _start_runtime(self, entry: CatalogEntry) -> None:
        global _runtime
        log.info("model_loading", model=entry.name, title=entry.title)
        loading = Loading(self._config, entry)
        loading.start()
        while not loading.done.wait(LOOK_SECONDS):
            self._leave_if_asked()
        if loading.error is not None:
            sentence = loading.error.message if isinstance(loading.error, InferenceError) else loading.error
            _go_back(self._config, self._handover, sentence, is_asked_to_stop=lambda: bool(self.num_stop_signals))
            self._leave_if_asked()
            self._heartbeat.withdraw()
            _fail(loading.error)
        assert loading.runtime is not None
        self._heartbeat.kit = loading.kit
        key = self._store_kit(loading.kit)
        self._model = msgspec.structs.replace(loading.card, prompt_kit=key)
        self._notes, self._degradations, self._device = loading.notes, loading.degradations, loading.device
        loading.runtime.start()
        self._runtime = _runtime = self._swapping.runtime = loading.runtime
        failure = self._handover.failure if self._handover else ""
        if failure:
            self._degradations += (failure,)
            metrics.DEGRADATIONS.labels(self._model.name).inc()
        self._heartbeat.announce_if_possible()
        self._swapping.has_loaded(failure=failure)
        log.info("worker_ready", name=self._config.worker_name, model=entry.name, slots=loading.runtime.num_slots)

    def _store_kit(self, kit: bytes) -> str:
        """Redis may be away while a worker starts; without the kit nobody could use it anyway."""
        while True:
            try:
                return self._registry.store_kit(kit)
            except RedisError as error:
                log.warning("kit_not_stored", error=type(error).__name__)
                self._leave_if_asked()
                time.sleep(STORE_RETRY_SECONDS)

    def _leave_if_asked(self) -> None:
        """A worker that is told to stop before it serves has nothing to drain, and its loader cannot be interrupted."""
        if self.num_stop_signals:
            log.info("worker_stopped", while_state="loading")
            self._swapping.end()
            self._heartbeat.withdraw()
            _exit(os.EX_OK)

    def _card(self) -> WorkerCard:
        runtime = self._runtime
        card = WorkerCard(
            name=self._config.worker_name,
            model=self._model,
            num_slots=self._num_slots,
            num_free_slots=0,
            device=self._device,
            started_at=self._started_at,
            seen_at=time.time(),
            state="loading",
            next_model=self._swapping.next_model,
            notes=self._notes,
            degradations=self._degradations,
        )
        if runtime is None:
            return card
        runtime.observe()
        stats = runtime.engine.stats()
        return msgspec.structs.replace(
            card,
            state="ready" if runtime.accepts else "draining",
            num_slots=stats.num_slots,
            num_free_slots=stats.num_free_slots,
            num_decoded_tokens=stats.num_decoded_tokens,
            engine_idle_seconds=stats.seconds_since_step,
        )


def _go_back(
    config: InferenceConfig, handover: Handover | None, sentence: str, *, is_asked_to_stop: Callable[[], bool]
) -> None:
    """The ordered model cannot be served: become the one before again. Returns where there was none."""
    if handover is None or not handover.previous:
        return
    failure = f"{config.model} could not be loaded, so the model before is served again: {sentence}"
    log.error("swap_failed", model=config.model, reason=sentence)
    back = Handover(order=handover.order, failure=failure)
    _replace_process(handover.previous, back, config, is_asked_to_stop=is_asked_to_stop)


def _replace_process(
    model: str, handover: Handover, config: InferenceConfig, *, is_asked_to_stop: Callable[[], bool]
) -> None:
    try:
        reexec.become(model, handover, config, is_asked_to_stop=is_asked_to_stop)
    except OSError as error:
        _fail(f"The process could not be replaced by one that serves {model}: {error}")


def _fail(error: InferenceError | str) -> NoReturn:
    """End the process with one sentence: this worker can never serve as it is set up."""
    sentence = error.message if isinstance(error, InferenceError) else error
    log.critical("worker_failed", reason=sentence)
    _exit(1)


def _exit(code: int) -> NoReturn:
    # Not sys.exit: a signal's receivers and a half-loaded library may keep the interpreter from ending.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


signals.setup_logging.connect(set_up_logging)
signals.celeryd_init.connect(choose_model)
celery_module.app.steps["worker"].add(ModelStep)
