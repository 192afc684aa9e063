"""The engine: one thread that turns submissions into tokens, step by step.

Owns the thread, the line of submissions and who is still open; the step itself is `loop.py`. Knows nothing of text,
Redis or a particular model. `submit`, `cancel`, `stats`, `drain` and `stop` may be called from any thread. The backend
belongs to the engine from construction on and is closed by it, on its thread.

Before every step the cancelled are dropped. A broken sink ends its own sequence. Whatever else goes wrong outside a
forward call ends the thread, visibly: every sequence gets Ended(ERROR), and `stats` says why.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from uuid import UUID

import numpy as np
import structlog

from inference.engine.backend import Backend
from inference.engine.kv.prefix_cache import MIN_COPY_TOKENS, MIN_HOST_TOKENS
from inference.engine.request import Ended, Output, Reading, Sink, Submission, Token
from inference.engine.sequence import Sequence
from inference.engine.stats import EngineStats
from inference.engine.step_loop import StepLoop, facts_of
from inference.errors import ConfigError, EngineDied, EngineStopped, InvalidRequest, PromptTooLong
from inference.messages.generation import ErrorFacts, FinishReason

__all__ = ["Ended", "Engine", "EngineStats", "Output", "Reading", "Sink", "Submission", "Token"]

log = structlog.get_logger(__name__)


class Engine:
    """Prefixes of at least `min_host_tokens` that have to leave their slot are kept in host memory, in at most
    `host_cache_bytes`.

    Raises ConfigError when the backend's batch has no room for a prompt token beside a row of every slot.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        end_tokens: frozenset[int],
        target_itl_ms: float,
        min_chunk_tokens: int = 16,
        gather_steps: int = 0,
        min_copy_tokens: int = MIN_COPY_TOKENS,
        min_host_tokens: int = MIN_HOST_TOKENS,
        host_cache_bytes: int = 0,
        sampler_threads: int = 1,
        dry_breakers: frozenset[int] = frozenset(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if backend.max_batch_tokens <= backend.num_slots:
            raise ConfigError(
                f"WORKER_BATCH_TOKENS must be above the number of slots ({backend.num_slots}), "
                f"not {backend.max_batch_tokens}."
            )
        self._clock = clock
        self._num_slots = backend.num_slots
        self._context_tokens = min(backend.context_tokens, backend.pool_tokens)  # so one alone always has room
        self._pool_tokens = backend.pool_tokens
        self._vocab_size = backend.vocab_size
        self._loop = StepLoop(
            backend,
            end_tokens=end_tokens,
            target_itl_ms=target_itl_ms,
            min_chunk_tokens=min_chunk_tokens,
            gather_steps=gather_steps,
            min_copy_tokens=min_copy_tokens,
            min_host_tokens=min_host_tokens,
            host_cache_bytes=host_cache_bytes,
            sampler_threads=sampler_threads,
            dry_breakers=dry_breakers,
            clock=clock,
            deliver_one=self._deliver_one,
        )
        # Shared between threads, under the lock:
        self._lock = threading.Condition()
        self._inbox: deque[Sequence] = deque()
        self._cancelled: set[UUID] = set()
        self._open: dict[UUID, Sequence] = {}  # submitted, Ended not yet delivered
        self._num_submitted = 0
        self._num_unended = 0  # as _open, but counted until the sink has returned
        self._last_progress = 0.0
        self._is_stopping = False
        self._is_closed = False
        self._error: ErrorFacts | None = None
        self._thread: threading.Thread | None = None

    # Any thread

    def start(self) -> None:
        """Start the engine's thread. Once."""
        assert self._thread is None
        assert not self._is_closed
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def submit(self, submission: Submission) -> None:
        """Take a submission in; its sink gets everything that follows.

        Raises:
            EngineStopped: the engine is stopping, stopped or dead; nothing was taken in.
            PromptTooLong: the prompt leaves no room for a single token of an answer.
            InvalidRequest: no prompt, an id outside the vocabulary, more shared tokens than the prompt has, or a key
                that is already in work.
        """
        self._check(submission)
        with self._lock:
            if self._is_stopping or self._is_closed:
                raise EngineStopped("The engine has stopped.")
            if submission.key in self._open:
                raise InvalidRequest(f"{submission.key} is already in work.")
            now = self._clock()
            sequence = Sequence(
                submission, context_tokens=self._context_tokens, arrival=self._num_submitted, arrived_at=now
            )
            self._num_submitted += 1
            self._num_unended += 1
            if not self._open:
                self._last_progress = now
            self._open[submission.key] = sequence
            self._inbox.append(sequence)
            self._lock.notify_all()

    def cancel(self, key: UUID) -> None:
        """Have a sequence end before the next step, wherever it stands; nothing happens when it is unknown."""
        with self._lock:
            if key in self._open:
                self._cancelled.add(key)
                self._lock.notify_all()

    def drain(self, timeout: float) -> bool:
        """Wait until every sink has its Ended; False when some had not after `timeout` seconds."""
        with self._lock:
            return self._lock.wait_for(lambda: self._num_unended == 0, timeout)

    def stop(self, timeout: float) -> bool:
        """End the thread after the step it is in; what is not finished gets Ended(CANCELLED, engine_stopped).

        Returns False when the thread still hangs in a forward call after `timeout` seconds. The backend is closed by
        the thread itself.
        """
        with self._lock:
            self._is_stopping = True
            self._lock.notify_all()
        if self._thread is None:
            self._close()
            return True
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def stats(self) -> EngineStats:
        with self._lock:
            num_open = len(self._open)
            num_running = self._loop.num_running
            since = self._clock() - self._last_progress if num_open else 0.0
            is_alive = self._thread is not None and self._thread.is_alive() and not self._is_closed
            num_free_slots = 0 if self._is_closed else max(0, self._num_slots - num_open)
            error = self._error
        totals = self._loop.totals
        return EngineStats(
            is_alive=is_alive,
            error=error,
            num_slots=self._num_slots,
            num_running=num_running,
            num_waiting=max(0, num_open - num_running),
            num_free_slots=num_free_slots,
            num_decoded_tokens=totals.num_decoded_tokens,
            num_prefilled_tokens=totals.num_prefilled_tokens,
            num_cached_tokens=totals.num_cached_tokens,
            num_host_restored_tokens=totals.num_host_restored_tokens,
            num_evictions=totals.num_evictions,
            num_preemptions=totals.num_preemptions,
            num_held_tokens=self._loop.num_held_tokens,
            pool_tokens=self._pool_tokens,
            host_cache_bytes=self._loop.host_cache_bytes,
            num_steps=totals.num_steps,
            num_failed_forwards=totals.num_failed_forwards,
            num_bad_rows=totals.num_bad_rows,
            num_undecided_rows=totals.num_undecided_rows,
            seconds_since_step=since,
            last_step_seconds=totals.last_step_seconds,
            forward_seconds_total=totals.forward_seconds,
            sampling_seconds_total=totals.sampling_seconds,
            host_seconds_total=totals.host_seconds,
            decode_step_ms=self._loop.decode_step_ms,
            ms_per_prefill_token=self._loop.ms_per_prefill_token,
        )

    def _check(self, submission: Submission) -> None:
        num_prompt, num_generated = len(submission.prompt), len(submission.generated)
        if num_prompt == 0:
            raise InvalidRequest("The prompt is empty.", param="messages")
        if submission.max_tokens < 1:
            raise InvalidRequest(f"max_tokens must be at least 1, not {submission.max_tokens}.", param="max_tokens")
        if num_prompt >= self._context_tokens:
            raise PromptTooLong(
                prompt_tokens=num_prompt, limit_tokens=self._context_tokens - 1, context_tokens=self._context_tokens
            )
        if not 0 <= submission.num_shared <= num_prompt:
            raise InvalidRequest(f"{submission.num_shared} of {num_prompt} prompt tokens cannot be shared.")
        submission.plan.check_vocab(self._vocab_size)
        if num_prompt + num_generated > self._context_tokens:
            raise InvalidRequest(f"{num_prompt} + {num_generated} tokens are more than the context holds.")
        for ids in (submission.prompt, submission.generated):
            if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
                raise InvalidRequest("token ids must be a flat array of integers.")
            if len(ids) and not (int(ids.min()) >= 0 and int(ids.max()) < self._vocab_size):
                raise InvalidRequest(f"token ids must be between 0 and {self._vocab_size - 1}.")

    # The engine's thread

    def _run(self) -> None:
        try:
            while True:
                with self._lock:
                    self._lock.wait_for(lambda: self._is_stopping or self._inbox or self._loop.has_work)
                    if self._is_stopping:
                        break
                self.step()
        except Exception as error:  # the edge of the thread: whatever it was, nobody may be left waiting
            log.exception("engine died", error=type(error).__name__)
            self._error = facts_of(EngineDied("The engine stopped unexpectedly."))
        finally:
            self._close()

    def step(self) -> bool:
        """One turn of the loop; False when there was nothing to evaluate. Tests call it in place of `start`."""
        with self._lock:
            arrived = list(self._inbox)
            self._inbox.clear()
            cancelled = [self._open[key] for key in self._cancelled if key in self._open]
            self._cancelled.clear()
        for sequence in arrived:
            self._loop.add(sequence)
        for sequence in cancelled:
            self._loop.cancel(sequence)
        did_work = self._loop.step()
        with self._lock:
            self._last_progress = self._clock()
        return did_work

    def check_integrity(self) -> None:
        """Raise AssertionError if sequences, slots and record contradict each other. Between steps only."""
        self._loop.check_integrity()

    def _deliver_one(self, sequence: Sequence, output: Output) -> None:
        is_last = isinstance(output, Ended)
        if is_last:
            with self._lock:
                del self._open[sequence.key]  # before the sink hears: it may submit the key again
        try:
            sequence.sink(output)
        except Exception:  # the sink is the caller's; its fault must not reach other sequences
            log.exception("sink failed", key=str(sequence.key))
            if not sequence.is_ended:
                self.cancel(sequence.key)
        if is_last:
            with self._lock:
                self._num_unended -= 1
                self._lock.notify_all()

    def _close(self) -> None:
        """End every sequence, give the backend back. The last thing that happens to an engine."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._loop.abandon()
        if self._error is None:
            reason, facts = FinishReason.CANCELLED, facts_of(EngineStopped("The worker stopped during this answer."))
        else:
            reason, facts = FinishReason.ERROR, self._error
        for sequence in list(self._open.values()):  # nobody can add to it any more
            self._deliver_one(sequence, Ended(reason, sequence.num_cached, facts))
        self._loop.close()
