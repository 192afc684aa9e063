"""The engine alone: model, scheduler and sampler, without queue, web or text.

Closed loop: as a conversation ends, the next begins. Open loop: conversations begin at their own times, whatever the
engine does. A conversation's next turn is sent once its answer has come. Tokens are noted on the engine's thread, so
that nothing but the end of an answer wakes the sender.
"""

from __future__ import annotations

import queue
import random
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from inference.bench.measurement import Goodput, RequestTimes, peak_in_flight, summarize
from inference.bench.workload import Conversation, Workload
from inference.catalog import Catalog
from inference.config import InferenceConfig
from inference.engine.engine import Engine
from inference.engine.logits import TokenIds
from inference.engine.request import Ended, Output, Reading, Submission, Token
from inference.engine.sampling.plan import SamplerPlan
from inference.engine.stats import EngineStats
from inference.errors import ConfigError
from inference.llama.loader import LoadedModel, load
from inference.messages.generation import ChatMessage, FinishReason, GenerationRequest, Role, SamplingParams
from inference.prompt.builder import PromptBuilder
from inference.prompt.kit import PromptKit
from inference.prompt.tokenizer import Tokenizer
from inference.worker.process.engine_setup import new_engine

STOP_SECONDS = 10.0


@dataclass
class _Flight:
    """One conversation under way."""

    conversation: Conversation
    times: RequestTimes
    messages: list[ChatMessage] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)  # of the newest turn's prompt
    answer: list[int] = field(default_factory=list)  # of the newest turn
    turn: int = 0  # turns sent


class _Prompts(Protocol):
    def prepare(self, workload: Workload) -> None:
        """Called before the clock runs."""

    def next_prompt(self, flight: _Flight) -> tuple[list[int], int]:
        """Token ids of the conversation with its next turn, and how many of them are nobody's own."""


class EngineBench:
    """One loaded model for several runs. End tokens are ignored: every answer has its full length.

    With `is_raw` prompts are token ids of exactly the wanted number, without a chat template.
    """

    def __init__(
        self, config: InferenceConfig, slots: int, *, sampling: SamplingParams, is_raw: bool, sampler_threads: int = 0
    ) -> None:
        """Raises ConfigError: fewer slots than wanted could be set up. ModelFileError: the model cannot be used."""
        self.loaded: LoadedModel = load(Catalog.of(config).entry(config.model), config)
        backend = self.loaded.backend
        if backend.num_slots < slots:
            backend.close()
            raise ConfigError(
                f"There are {backend.num_slots} slots, fewer than {slots} streams: set WORKER_SLOTS, or a smaller "
                "WORKER_CONTEXT_TOKENS where memory is short."
            )
        self._engine = new_engine(
            self.loaded,
            config,
            Tokenizer(self.loaded.kit),
            end_tokens=frozenset(),
            sampler_threads=sampler_threads,
        )
        self._sampling = sampling
        self._prompts: _Prompts = RawPrompts(self.loaded.kit) if is_raw else ChatPrompts(self.loaded.kit)
        self._engine.start()

    def close(self) -> None:
        self._engine.stop(STOP_SECONDS)  # closes the backend too

    def run(
        self,
        workload: Workload,
        *,
        concurrency: int,
        request_rate: float = 0.0,
        goodput: Goodput | None = None,
        on_done: Callable[[], None] = lambda: None,
    ) -> dict[str, Any]:
        """The row of results of one workload: `concurrency` conversations at once, or `request_rate` a second."""
        self._prompts.prepare(workload)
        before = self._engine.stats()
        run = _Run(self._engine, self._prompts, self._sampling, workload, on_done)
        began = time.perf_counter()
        run.drive(concurrency, request_rate)
        took = time.perf_counter() - began
        rss_end = rss_anon_mb()
        row = summarize(
            run.times,
            took,
            goodput,
            concurrency=peak_in_flight(run.times) if request_rate else concurrency,
            request_rate=request_rate or "inf",
            workload=workload.kind,
        )
        row |= _per_step(before, self._engine.stats())
        return row | {"rss_anon_mb_start": run.rss_start_mb or rss_end, "rss_anon_mb_end": rss_end}


class _Run:
    """Sends one workload and gathers its times."""

    def __init__(
        self,
        engine: Engine,
        prompts: _Prompts,
        sampling: SamplingParams,
        workload: Workload,
        on_done: Callable[[], None],
    ) -> None:
        self.times: list[RequestTimes] = []
        self.rss_start_mb = 0.0  # once a tenth has ended and every buffer has its size
        self._engine = engine
        self._prompts = prompts
        self._sampling = sampling
        self._workload = workload
        self._on_done = on_done
        self._ended: queue.SimpleQueue[_Flight] = queue.SimpleQueue()
        self._ids = random.Random(f"ids {workload.seed}")
        self._num_ended = 0

    def drive(self, concurrency: int, request_rate: float) -> None:
        conversations = self._workload.conversations()
        num_open = 0
        if request_rate:
            began = time.perf_counter()
            for conversation, at in zip(conversations, self._workload.arrivals(request_rate)):
                while (wait := began + at - time.perf_counter()) > 0:
                    num_open -= self._await_end(wait)
                self._begin(conversation)
                num_open += 1
        else:
            for _, conversation in zip(range(concurrency), conversations):
                self._begin(conversation)
                num_open += 1
        while num_open:
            if self._await_end(None):
                following = next(conversations, None)
                if following is None:
                    num_open -= 1
                else:
                    self._begin(following)

    def _await_end(self, timeout: float | None) -> bool:
        """Wait for an answer's end and send the conversation's next turn; whether the conversation is over."""
        try:
            flight = self._ended.get(timeout=timeout)
        except queue.Empty:
            return False
        self._on_done()
        self._num_ended += 1
        if not self.rss_start_mb and self._num_ended * 10 >= self._workload.num_requests:
            self.rss_start_mb = rss_anon_mb()
        if flight.times.error or flight.turn == len(flight.conversation.turns):
            return True
        self._send(flight)
        return False

    def _begin(self, conversation: Conversation) -> None:
        self._send(_Flight(conversation, RequestTimes(sent_at=0.0)))

    def _send(self, flight: _Flight) -> None:
        times = RequestTimes(
            sent_at=time.perf_counter(), turn=flight.turn + 1, history_tokens=len(flight.tokens) + len(flight.answer)
        )
        flight.tokens, num_shared = self._prompts.next_prompt(flight)
        turn = flight.conversation.turns[flight.turn]
        flight.turn += 1
        flight.answer = []
        flight.times = times
        times.prompt_tokens = len(flight.tokens)
        self.times.append(times)
        prompt: TokenIds = np.array(flight.tokens, np.int32)
        self._engine.submit(
            Submission(
                key=uuid.UUID(int=self._ids.getrandbits(128), version=4),
                prompt=prompt,
                generated=np.zeros(0, np.int32),
                plan=SamplerPlan.of(self._sampling, seed=flight.conversation.number * 1000 + flight.turn),
                max_tokens=turn.max_tokens,
                salt=f"bench-{flight.conversation.number}",
                priority=0,
                sink=partial(_note, flight, self._ended),
                num_shared=num_shared,
            )
        )


def _note(flight: _Flight, ended: queue.SimpleQueue[_Flight], output: Output) -> None:
    """The sink; on the engine's thread."""
    times = flight.times
    match output:
        case Token():
            times.piece_times.append(time.perf_counter())
            flight.answer.append(output.id)
        case Reading():
            times.began_at = times.began_at or time.perf_counter()
            times.cached_tokens = output.num_cached
        case Ended():
            times.ended_at = time.perf_counter()
            times.output_tokens = len(flight.answer)
            if output.reason in (FinishReason.ERROR, FinishReason.CANCELLED):
                times.error = output.error.message if output.error else output.reason
            ended.put(flight)


class RawPrompts:
    """Words as tokens one after the other, cut to the wanted number; a history is its token ids."""

    def __init__(self, kit: PromptKit) -> None:
        self._tokenizer = Tokenizer(kit)
        self._known: dict[str, list[int]] = {}

    def prepare(self, workload: Workload) -> None:
        """Tokenize beforehand: batched-bench is given its tokens as well."""
        for conversation in workload.conversations():
            for turn in conversation.turns:
                self._known[turn.text] = self._encode(turn.text)

    def next_prompt(self, flight: _Flight) -> tuple[list[int], int]:
        conversation = flight.conversation
        before = flight.tokens + flight.answer
        if not before and conversation.system:
            before = self._encode(conversation.system)
        num_shared = len(conversation.system.split())
        return before + self._encode(conversation.turns[flight.turn].text), num_shared

    def _encode(self, text: str) -> list[int]:
        known = self._known.get(text)
        return self._tokenizer.encode_text(text)[: len(text.split())] if known is None else known


class ChatPrompts:
    """Conversations through the model's template, as in a worker, each answer by the very ids that were generated.

    What a random model generates is no text that a tokenizer would cut the same way again, so that a history of text
    would measure the tokenizer and not the cache.
    """

    def __init__(self, kit: PromptKit) -> None:
        self._tokenizer = _KnownTexts(kit)
        self._builder = PromptBuilder(kit, self._tokenizer)

    def prepare(self, workload: Workload) -> None:
        """Nothing: as in a worker, template and tokenizer are part of the first token's time."""

    def next_prompt(self, flight: _Flight) -> tuple[list[int], int]:
        conversation = flight.conversation
        if flight.turn:
            name = f"answer {flight.turn} of conversation {conversation.number}"
            self._tokenizer.ids[name] = flight.answer
            flight.messages.append(ChatMessage(role=Role.ASSISTANT, content=name))
        elif conversation.system:
            flight.messages.append(ChatMessage(role=Role.SYSTEM, content=conversation.system))
        turn = conversation.turns[flight.turn]
        flight.messages.append(ChatMessage(role=Role.USER, content=turn.text))
        prompt = self._builder.build(
            GenerationRequest(
                id=uuid.UUID(int=conversation.number),
                model="",
                user_key="",
                messages=tuple(flight.messages),
                thinking=False,
                is_system_shared=True,
                sampling=SamplingParams(max_tokens=turn.max_tokens),
                date="2026-01-01",
            )
        )
        if prompt.num_dropped_messages:
            raise ConfigError("The context is too small for these conversations: set WORKER_CONTEXT_TOKENS.")
        if flight.turn + 1 == len(conversation.turns):
            for message in flight.messages:
                self._tokenizer.ids.pop(message.content, None)
        return prompt.tokens.tolist(), prompt.num_shared


class _KnownTexts(Tokenizer):
    """A tokenizer that knows the ids of some texts beforehand."""

    def __init__(self, kit: PromptKit) -> None:
        super().__init__(kit)
        self.ids: dict[str, list[int]] = {}

    def encode_text(self, text: str, *, begins: bool = True) -> list[int]:
        known = self.ids.get(text)
        return super().encode_text(text, begins=begins) if known is None else known

    def encode_batch(self, texts: Sequence[str], *, begins: bool = True) -> list[list[int]]:
        return [self.encode_text(text, begins=begins) for text in texts]


def rss_anon_mb() -> float:
    """This process's own memory, mapped model files not counted; 0 where the system does not tell."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:  # not Linux
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("RssAnon:")), 0.0)


def _per_step(before: EngineStats, after: EngineStats) -> dict[str, float]:
    """Means over the run's steps, in milliseconds."""
    num_steps = max(1, after.num_steps - before.num_steps)
    return {
        "num_steps": after.num_steps - before.num_steps,
        "forward_ms_per_step": (after.forward_seconds_total - before.forward_seconds_total) * 1e3 / num_steps,
        "sampling_ms_per_step": (after.sampling_seconds_total - before.sampling_seconds_total) * 1e3 / num_steps,
        "host_ms_per_step": (after.host_seconds_total - before.host_seconds_total) * 1e3 / num_steps,
    }
