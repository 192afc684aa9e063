"""Loads a worker's model in a thread of its own, so that the main thread hears signals meanwhile.

Owns the thread and what comes of it: a runtime that has not started, or one sentence. `worker.lifecycle` starts it and
looks.
"""

from __future__ import annotations

import threading

import structlog

from inference import celery as celery_module
from inference.catalog import CatalogEntry
from inference.config import InferenceConfig
from inference.coordination.redis_client import connect
from inference.errors import InferenceError
from inference.messages.cards import ModelCard
from inference.prompt.builder import PromptBuilder
from inference.worker.attempt.context import Served
from inference.worker.process.runtime import Runtime

log = structlog.get_logger(__name__)


class Loading:
    """Loads the model in a thread of its own. Read the results once `done` is set."""

    def __init__(self, config: InferenceConfig, entry: CatalogEntry) -> None:
        self.done = threading.Event()
        self.error: InferenceError | str | None = None
        self.runtime: Runtime | None = None
        self.kit = b""
        self.notes: tuple[str, ...] = ()
        self.degradations: tuple[str, ...] = ()
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
        from inference.worker.process.engine_setup import new_engine

        loaded = loader.load(self._entry, self._config)
        prompts = PromptBuilder(loaded.kit)
        engine = new_engine(loaded, self._config, prompts.tokenizer)
        self.card, self.device = loaded.card, loaded.device
        self.notes, self.degradations = loaded.notes, loaded.degradations
        self.kit = loaded.kit.to_bytes()
        self.runtime = Runtime(
            self._config,
            connect(self._config),
            engine,
            Served.of(prompts),
            ring=celery_module.ring,
            send_record=celery_module.send_record,
        )
