"""The step loop: from running sequences to tokens, over one backend. No locks, no threads of its own.

Owns the backend, the slots, the prefix cache, the scheduler and the sampler. `engine.py` calls it, on the engine's
thread alone, and passes on what comes out.

A step: seat who waits -> build the batch -> deliver the previous step's outputs -> forward -> logits -> sample -> note
the outputs. Outputs go out right before the forward call: their readers do their text work while the call has released
the interpreter, and on a CPU, where it blocks, nobody waits a whole step for a token.

What can go wrong stays with whom it concerns: a bad row ends its sequence; a failed forward clears the slots on board
and recomputes each sequence alone, so that only one which fails alone again is ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
import structlog

from inference.engine.backend import Backend
from inference.engine.batch import Batch
from inference.engine.prefix_cache import PrefixCache
from inference.engine.sampler import BAD_ROW, Sampler
from inference.engine.scheduler import Scheduler, Work
from inference.engine.sequence import Sequence, SequenceStatus
from inference.engine.slots import SlotPool
from inference.engine.stats import Totals
from inference.engine.submission import Ended, Output, Reading, Token
from inference.errors import BadLogits, EngineError, InferenceError
from inference.protocol import ErrorFacts, FinishReason

MAX_FAILURES = 16  # failed forwards in all that end a sequence, though each recomputing went well: the device is ill

log = structlog.get_logger(__name__)


class StepLoop:
    """`deliver_one` gets every output, in order per sequence, with Ended last; it must not raise."""

    def __init__(
        self,
        backend: Backend,
        *,
        end_tokens: frozenset[int],
        target_itl_ms: float,
        min_chunk_tokens: int,
        min_copy_tokens: int,
        sampler_threads: int,
        clock: Callable[[], float],
        deliver_one: Callable[[Sequence, Output], None],
    ) -> None:
        self.totals = Totals()
        self._backend = backend
        self._end_tokens = end_tokens
        self._clock = clock
        self._deliver_one = deliver_one
        self._batch = Batch(backend.max_batch_tokens)
        self._pool = SlotPool(backend.num_slots, backend.context_tokens)
        self._cache = PrefixCache(self._pool, min_copy_tokens=min_copy_tokens)
        self._sampler = Sampler(backend.vocab_size, num_threads=sampler_threads)
        self._scheduler = Scheduler(
            max_batch_tokens=backend.max_batch_tokens, target_itl_ms=target_itl_ms, min_chunk_tokens=min_chunk_tokens
        )
        self._outbox: deque[tuple[Sequence, Output]] = deque()

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything: evaluate, seat, or deliver."""
        return bool(self._scheduler.running or self._scheduler.waiting or self._outbox)

    @property
    def num_running(self) -> int:
        return len(self._scheduler.running)

    @property
    def decode_step_ms(self) -> float:
        return self._scheduler.decode_step_ms

    @property
    def ms_per_prefill_token(self) -> float:
        return self._scheduler.ms_per_prefill_token

    def add(self, sequence: Sequence) -> None:
        self._scheduler.enqueue(sequence)

    def cancel(self, sequence: Sequence) -> None:
        """End it now; its slot is free at once and keeps what was decoded as prefix cache."""
        if not sequence.is_ended:
            self._end(sequence, FinishReason.CANCELLED)

    def step(self) -> bool:
        """One turn; False when there was nothing to evaluate.

        Raises whatever the backend raises beside EngineError in `forward` and `logits`.
        """
        started = self._clock()
        self._seat_waiting()
        work = self._scheduler.plan()
        self._fill_batch(work)
        self.deliver()
        if not work:
            return False
        forward_started = self._clock()
        try:
            self._backend.forward(self._batch)
            logits = self._backend.logits()
        except EngineError as error:
            self.totals.num_failed_forwards += 1
            log.warning("forward failed", code=error.code, num_sequences=len(work), num_tokens=self._batch.num_tokens)
            self._recover(work, error)
            return True
        forward_ended = self._clock()
        rows = [w.sequence for w in work if w.wants_logits]
        tokens = self._sampler.sample(logits, rows) if rows else []
        sampling_ended = self._clock()
        num_prefilled = self._note_evaluated(work)
        for sequence, token in zip(rows, tokens, strict=True):
            self._advance(sequence, token)
        ended = self._clock()

        totals = self.totals
        totals.num_steps += 1
        totals.num_prefilled_tokens += num_prefilled
        totals.forward_seconds += forward_ended - forward_started
        totals.sampling_seconds += sampling_ended - forward_ended
        totals.host_seconds += (forward_started - started) + (ended - sampling_ended)
        totals.last_step_seconds = ended - started
        self._scheduler.observe(num_prefill_tokens=num_prefilled, seconds=ended - started)
        return True

    def _seat_waiting(self) -> None:
        while (sequence := self._scheduler.next_waiting()) is not None:
            if sequence.is_full:  # an earlier attempt had come to the end already
                self._end(sequence, FinishReason.LENGTH)
                continue
            seat = self._cache.find_seat(sequence.history.ids, sequence.salt)
            if seat is None:
                return
            slot, kept = seat.slot, 0 if seat.source else seat.num_reused
            if slot.num_tokens > kept:
                self._backend.remove_range(slot.index, kept)
                slot.truncate(kept)
            if seat.source is not None:
                self._backend.copy_prefix(seat.source.index, slot.index, seat.num_reused)
                slot.extend(seat.source.ids[: seat.num_reused])
                slot.salt = sequence.salt
                self._pool.touch(seat.source)
            self._pool.take(slot, sequence.key, sequence.salt)
            self._scheduler.start(sequence)
            sequence.slot = slot.index
            sequence.num_evaluated = seat.num_reused
            sequence.num_cached = min(seat.num_reused, sequence.history.num_prompt)
            sequence.move(SequenceStatus.PREFILL)
            self.totals.num_cached_tokens += seat.num_reused
            self._report_reading(sequence)

    def _fill_batch(self, work: list[Work]) -> None:
        self._batch.clear()
        for w in work:
            sequence = w.sequence
            assert sequence.slot is not None
            start = sequence.num_evaluated
            self._batch.add(
                sequence.slot,
                sequence.history.part(start, start + w.num_tokens),
                start,
                wants_logits=w.wants_logits,
            )

    def _note_evaluated(self, work: list[Work]) -> int:
        """Write down what a successful forward did; returns how many prefill tokens it held."""
        num_prefilled = 0
        for w in work:
            sequence = w.sequence
            assert sequence.slot is not None
            start = sequence.num_evaluated
            self._pool[sequence.slot].extend(sequence.history.part(start, start + w.num_tokens))
            sequence.num_evaluated += w.num_tokens
            if sequence.status is SequenceStatus.PREFILL:
                num_prefilled += w.num_tokens
                self._report_reading(sequence)
                if sequence.num_pending == 0:
                    sequence.is_suspect = False
                    sequence.move(SequenceStatus.DECODE)
        return num_prefilled

    def _advance(self, sequence: Sequence, token: int) -> None:
        if token == BAD_ROW:
            self.totals.num_bad_rows += 1
            log.warning("bad logits", key=str(sequence.key), num_tokens=sequence.num_tokens)
            self._clear_slot(sequence)  # nobody shall go on from a cache that led to no number
            self._end(sequence, FinishReason.ERROR, BadLogits("The model returned no usable number for this answer."))
            return
        self.totals.num_decoded_tokens += 1
        if token in self._end_tokens:
            self._end(sequence, FinishReason.STOP)
            return
        sequence.history.append(token)
        self._outbox.append((sequence, Token(token)))
        if sequence.is_full:
            self._end(sequence, FinishReason.LENGTH)

    def _recover(self, work: list[Work], error: EngineError) -> None:
        """After a failed forward the KV of everybody on board is unknown: clear it, then recompute or end each."""
        for w in work:
            sequence = w.sequence
            self._clear_slot(sequence)
            sequence.num_failures += 1
            if sequence.is_suspect or sequence.num_failures >= MAX_FAILURES:  # suspects fail alone
                self._end(sequence, FinishReason.ERROR, error)
            else:
                sequence.is_suspect = True
                sequence.move(SequenceStatus.PREFILL)

    def _clear_slot(self, sequence: Sequence) -> None:
        assert sequence.slot is not None
        self._backend.remove_range(sequence.slot, 0)
        self._pool[sequence.slot].truncate(0)
        sequence.num_evaluated = 0

    def _end(self, sequence: Sequence, reason: FinishReason, error: InferenceError | None = None) -> None:
        self._scheduler.remove(sequence)
        sequence.move(SequenceStatus.ENDED)
        if sequence.slot is not None:
            self._pool.release(self._pool[sequence.slot])
            sequence.slot = None
        self._outbox.append((sequence, Ended(reason, sequence.num_cached, facts_of(error) if error else None)))

    def _report_reading(self, sequence: Sequence) -> None:
        # When an answer is recomputed after a failure its tokens are out already; reading is no news then.
        if sequence.num_tokens == sequence.num_submitted:
            num_total = sequence.num_submitted
            self._outbox.append((sequence, Reading(sequence.num_evaluated, num_total, sequence.num_cached)))

    def deliver(self) -> None:
        """Hand over the outputs noted so far."""
        while self._outbox:
            self._deliver_one(*self._outbox.popleft())

    def abandon(self) -> None:
        """Deliver what is noted and forget every sequence; whoever calls this tells those that have not ended."""
        self._scheduler.waiting.clear()
        self._scheduler.running.clear()
        self.deliver()

    def close(self) -> None:
        self._sampler.close()
        self._backend.close()

    def check_integrity(self) -> None:
        """Raise AssertionError if sequences, slots and record contradict each other. Between steps only."""
        self._pool.check_integrity()
        held = {slot.holder: slot for slot in self._pool.all if slot.holder is not None}
        assert set(held) == {s.key for s in self._scheduler.running}, "slots and running sequences differ"
        for sequence in self._scheduler.running:
            slot = held[sequence.key]
            assert sequence.slot == slot.index
            assert sequence.salt == slot.salt
            assert sequence.num_evaluated == slot.num_tokens
            assert np.array_equal(slot.ids, sequence.history.part(0, slot.num_tokens)), "the slot holds other tokens"
        for sequence in self._scheduler.waiting:
            assert sequence.slot is None
            assert sequence.status is SequenceStatus.WAITING


def facts_of(error: InferenceError) -> ErrorFacts:
    return ErrorFacts(code=error.code, message=error.message, retryable=error.retryable)
