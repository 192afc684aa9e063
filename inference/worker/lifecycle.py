"""A GPU worker's life inside Celery: choose the model, load it, serve, drain.

Owns the bootstep (between pool and consumer, so no message is taken before the model answers), queue and concurrency,
and the signals. Knows nothing of single generations. Celery's `-A inference.celery` includes it through
`worker.tasks`; everything here runs in the main thread but the loading itself, which has a thread of its own so that a
signal is heard meanwhile.

Queue and concurrency come from the catalog entry and the settings when the command line names none: a bare
`celery -A inference.celery worker -P threads` consumes `generate.<model>` with one thread per slot.

Celery's own handlers of TERM, INT and QUIT are replaced: its cold shutdown waits inside a signal handler for threads
it cannot stop. Here the first signal drains and the second hands everything on at once.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
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
from inference import keys
from inference.catalog import Catalog, CatalogEntry
from inference.config import InferenceConfig
from inference.errors import InferenceError
from inference.prompt.builder import PromptBuilder
from inference.protocol import ModelCard, WorkerCard
from inference.registry import Registry
from inference.store import connect
from inference.worker.heartbeat import Heartbeat
from inference.worker.runtime import Runtime
from inference.worker.workbench import Served

log = structlog.get_logger(__name__)

SWITCH_SECONDS = 0.001  # longest turn of a thread with the interpreter while others wait

STORE_RETRY_SECONDS = 1.0
LOOK_SECONDS = 0.2  # how soon a signal is noticed while the model loads

_runtime: Runtime | None = None
_chosen: tuple[InferenceConfig, CatalogEntry] | None = None


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
        entry = Catalog.of(config).entry(config.model)
    except InferenceError as error:
        _fail(error)
    _chosen = config, entry
    conf.worker_concurrency = config.slots or entry.slots
    if not options.get("queues"):
        instance.app.amqp.queues.select([keys.queue(entry.name)])


class ModelStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Loads the model before the consumer starts; drains after it has stopped and before the pool does."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        super().__init__(parent, **kwargs)
        self.num_stop_signals = 0
        self._runtime: Runtime | None = None
        self._started_at = time.time()
        self._notes: tuple[str, ...] = ()
        self._device = ""

    def start(self, parent: Any) -> None:
        assert _chosen is not None
        if not parent.pool_cls.__module__.endswith((".thread", ".solo")):
            _fail("A worker holds its model in one process: start it with -P threads.")
        self._config, entry = _chosen
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
        self._heartbeat = Heartbeat(self._registry, self._card)
        self._heartbeat.start()
        self._start_runtime(entry)

    def stop(self, parent: Any) -> None:
        """Warm shutdown: the consumer has stopped already."""
        global _runtime
        if self._runtime is None:
            return
        self._runtime.drain(self._config.drain_seconds, is_hurried=lambda: self.num_stop_signals > 1)
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

    def _serve_metrics(self, port: int) -> None:
        try:
            prometheus_client.start_http_server(port)
        except OSError as error:
            _fail(f"WORKER_METRICS_PORT {port} cannot be used: {error.strerror}.")

    def _start_runtime(self, entry: CatalogEntry) -> None:
        global _runtime
        log.info("model_loading", model=entry.name, title=entry.title)
        loading = _Loading(self._config, entry)
        loading.start()
        while not loading.done.wait(LOOK_SECONDS):
            self._leave_if_asked()
        if loading.error is not None:
            self._heartbeat.withdraw()
            _fail(loading.error)
        assert loading.runtime is not None
        self._heartbeat.kit = loading.kit
        key = self._store_kit(loading.kit)
        self._model = msgspec.structs.replace(loading.card, prompt_kit=key)
        self._notes, self._device = loading.notes, loading.device
        loading.runtime.start()
        self._runtime = _runtime = loading.runtime
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
            notes=self._notes,
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


class _Loading:
    """Loads the model in a thread of its own. Read the results once `done` is set."""

    def __init__(self, config: InferenceConfig, entry: CatalogEntry) -> None:
        self.done = threading.Event()
        self.error: InferenceError | str | None = None
        self.runtime: Runtime | None = None
        self.kit = b""
        self.notes: tuple[str, ...] = ()
        self.device = ""
        self.card: ModelCard
        self._config = config
        self._entry = entry
        self._thread = threading.Thread(target=self._run, name="loading", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            self._load()
        except InferenceError as error:
            self.error = error
        except Exception as error:
            log.exception("model_not_loaded", model=self._entry.name)
            self.error = f"The model {self._entry.name} could not be loaded: {error}"
        finally:
            self.done.set()

    def _load(self) -> None:
        # Here: nothing else in a worker's tests needs the library.
        from inference.llama import loader
        from inference.worker.engine_setup import new_engine

        loaded = loader.load(self._entry, self._config)
        prompts = PromptBuilder(loaded.kit)
        engine = new_engine(loaded, self._config, prompts.tokenizer)
        self.card, self.notes, self.device = loaded.card, loaded.notes, loaded.device
        self.kit = loaded.kit.to_bytes()
        self.runtime = Runtime(
            self._config,
            connect(self._config),
            engine,
            Served.of(prompts),
            ring=celery_module.ring,
            send_record=celery_module.send_record,
        )


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
