"""The engine alone: model, scheduler and sampler, without queue, web or text. Closed loop: as one answer ends, the next
request is sent."""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from inference.bench.measurement import RequestTimes, summarize
from inference.bench.workload import Workload
from inference.catalog import Catalog
from inference.config import InferenceConfig
from inference.engine.engine import Engine
from inference.engine.sampling import SamplerPlan, seed_of
from inference.engine.submission import Ended, Output, Reading, Submission, Token
from inference.llama.loader import LoadedModel, load
from inference.prompt.builder import PromptBuilder
from inference.protocol import FinishReason, GenerationRequest

Told = tuple[int, float, Output]


class EngineBench:
    """One loaded model, run at several concurrencies. End tokens are ignored: every answer has its full length."""

    def __init__(self, config: InferenceConfig, concurrency: int) -> None:
        self.loaded: LoadedModel = load(Catalog.of(config).entry(config.model), config)
        if self.loaded.backend.num_slots < concurrency:
            raise SystemExit(
                f"{self.loaded.backend.num_slots} slots, fewer than {concurrency} streams: set WORKER_SLOTS."
            )
        self.engine = Engine(
            self.loaded.backend,
            end_tokens=frozenset(),
            target_itl_ms=config.target_itl_ms,
            min_copy_tokens=self.loaded.backend.min_copy_tokens,
        )
        self.builder = PromptBuilder(self.loaded.kit)
        self.engine.start()

    def close(self) -> None:
        self.engine.stop(10.0)  # closes the backend too

    def run(self, workload: Workload, concurrency: int, on_done: Callable[[], None]) -> dict[str, Any]:
        """Send all requests, `concurrency` at a time, and return the row of results."""
        told: queue.SimpleQueue[Told] = queue.SimpleQueue()
        requests = deque(enumerate(workload.requests()))
        times: dict[int, RequestTimes] = {}
        began = time.perf_counter()
        for _ in range(min(concurrency, len(requests))):
            self._send(*requests.popleft(), times, told)
        while any(not t.ended_at for t in times.values()):
            number, at, output = told.get()
            mine = times[number]
            match output:
                case Token():
                    mine.piece_times.append(at)
                    mine.output_tokens += 1
                case Reading():
                    mine.cached_tokens = output.num_cached
                case Ended():
                    mine.ended_at = at
                    if output.reason is FinishReason.ERROR:
                        mine.error = output.error.message if output.error else "error"
                    on_done()
                    if requests:
                        self._send(*requests.popleft(), times, told)
        return summarize(list(times.values()), time.perf_counter() - began, concurrency=concurrency)

    def _send(
        self, number: int, request: GenerationRequest, times: dict[int, RequestTimes], told: queue.SimpleQueue[Told]
    ) -> None:
        times[number] = RequestTimes(sent_at=time.perf_counter())
        prompt = self.builder.build(
            request
        )  # as in the worker, template and tokenizer are part of the first token's time
        times[number].prompt_tokens = len(prompt.tokens)
        self.engine.submit(
            Submission(
                key=request.id,
                prompt=prompt.tokens,
                generated=np.zeros(0, np.int32),
                plan=SamplerPlan.of(request.sampling, seed=seed_of(request.id)),
                max_tokens=workload_tokens(request),
                salt="",  # as in the worker
                priority=0,
                sink=partial(_tell, told, number),
            )
        )


def workload_tokens(request: GenerationRequest) -> int:
    assert request.sampling.max_tokens is not None
    return request.sampling.max_tokens


def _tell(told: queue.SimpleQueue[Told], number: int, output: Output) -> None:
    told.put((number, time.perf_counter(), output))
