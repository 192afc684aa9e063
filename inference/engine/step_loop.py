"""The step loop: from running sequences to tokens, over one backend. No locks, no threads of its own.

Owns the backend, the slots, the prefix cache, the scheduler and the sampler. `engine.py` calls it, on the engine's
thread alone, and passes on what comes out.

A step: seat who waits -> build the batch -> forward, the previous step's outputs delivered -> logits -> sample -> note
the outputs. A device that computes by itself gets its work first, and the outputs go out while it computes. Where
forward blocks they go out right before it: their readers do their text work while the call has released the
interpreter, and nobody waits a whole step for a token.

What can go wrong stays with whom it concerns: a bad row ends its sequence; a failed forward clears the slots on board
and recomputes each sequence alone, so that only one which fails alone again is ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import structlog

from inference.engine.backend import Backend
from inference.engine.batch import Batch
from inference.engine.constraint import Constraint
from inference.engine.kv.allocator import Admission
from inference.engine.logits import LogitRows
from inference.engine.request import Ended, Logprobs, Output, Reading, Token
from inference.engine.sampling.excerpt import BAD_ROW, UNDECIDED
from inference.engine.sampling.sampler import NOTHING_ALLOWED, Sampled, Sampler
from inference.engine.scheduler import Scheduler, Work
from inference.engine.sequence import Sequence, SequenceStatus
from inference.engine.stats import Totals
from inference.errors import BadLogits, EngineError, InferenceError, InvalidRequest
from inference.messages.generation import ErrorFacts, FinishReason

MAX_FAILURES = 16  # failed forwards in all that end a sequence, though each recomputing went well: the device is ill

_NOTHING_ALLOWED = InvalidRequest("logit_bias and response_format together allow no token at all.", param="logit_bias")

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
        gather_steps: int,
        min_copy_tokens: int,
        min_host_tokens: int,
        host_cache_bytes: int,
        sampler_threads: int,
        dry_breakers: frozenset[int],
        clock: Callable[[], float],
        deliver_one: Callable[[Sequence, Output], None],
    ) -> None:
        self.totals = Totals()
        self._backend = backend
        self._end_tokens = end_tokens
        self._clock = clock
        self._deliver_one = deliver_one
        self._batch = Batch(backend.max_batch_tokens)
        self._admission = Admission(
            backend,
            self.totals,
            min_copy_tokens=min_copy_tokens,
            min_host_tokens=min_host_tokens,
            host_cache_bytes=host_cache_bytes,
        )
        self._sampler = Sampler(
            backend.vocab_size, num_threads=sampler_threads, dry_breakers=dry_breakers, end_tokens=end_tokens
        )
        self._scheduler = Scheduler(
            max_batch_tokens=backend.max_batch_tokens,
            target_itl_ms=target_itl_ms,
            min_chunk_tokens=min_chunk_tokens,
            gather_steps=gather_steps,
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
    def num_held_tokens(self) -> int:
        return self._admission.num_held_tokens

    @property
    def host_cache_bytes(self) -> int:
        return self._admission.host_cache_bytes

    @property
    def decode_step_ms(self) -> float:
        return self._scheduler.decode_step_ms

    @property
    def ms_per_prefill_token(self) -> float:
        return self._scheduler.ms_per_prefill_token

    def add(self, sequence: Sequence) -> None:
        self._scheduler.enqueue(sequence)
        if sequence.is_full:  # an earlier attempt had come to the end already
            self._end(sequence, FinishReason.LENGTH)

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
        work = self._fill_batch(self._plan())
        if not work or not self._backend.is_async:
            self.deliver()
        if not work:
            return False
        forward_started = self._clock()
        try:
            self._backend.forward(self._batch)
            self.deliver()
            logits = self._backend.logits()
        except EngineError as error:
            self.totals.num_failed_forwards += 1
            log.warning("forward failed", code=error.code, num_sequences=len(work), num_tokens=self._batch.num_tokens)
            self._recover(work, error)
            return True
        forward_ended = self._clock()
        rows = [w.sequence for w in work if w.wants_logits]
        sampled = self._sample(logits, rows)
        sampling_ended = self._clock()
        num_prefilled = self._note_evaluated(work)
        for index, sequence in enumerate(rows):
            self._advance(sequence, sampled.tokens[index], sampled.logprobs.get(index))
        ended = self._clock()

        totals = self.totals
        totals.num_steps += 1
        totals.num_prefilled_tokens += num_prefilled
        totals.forward_seconds += forward_ended - forward_started
        totals.sampling_seconds += sampling_ended - forward_ended
        totals.host_seconds += (forward_started - started) + (ended - sampling_ended)
        totals.last_step_seconds = ended - started
        self._scheduler.observe(
            num_decoding=self._batch.num_tokens - num_prefilled,
            num_prefill_tokens=num_prefilled,
            seconds=ended - started,
        )
        return True

    def _sample(self, logits: LogitRows, rows: list[Sequence]) -> Sampled:
        if not self._backend.gives_excerpts:
            return self._sampler.sample(logits, rows)
        whole = [i for i, row in enumerate(rows) if row.wants_whole_rows]
        cut = [i for i, row in enumerate(rows) if not row.wants_whole_rows]
        tokens, logprobs = [0] * len(rows), {}
        if cut:
            some = self._sampler.sample_excerpt(self._backend.excerpt(cut), [rows[i] for i in cut])
            for i, token in zip(cut, some.tokens, strict=True):
                tokens[i] = token
        if whole:
            some = self._sampler.sample(logits if not cut else logits[whole], [rows[i] for i in whole])
            for place, (i, token) in enumerate(zip(whole, some.tokens, strict=True)):
                tokens[i] = token
                if place in some.logprobs:
                    logprobs[i] = some.logprobs[place]
        return Sampled(tokens, logprobs)

    def _seat_waiting(self) -> None:
        while (sequence := self._scheduler.next_waiting()) is not None and self._seat(sequence):
            pass
        while (person := self._scheduler.next_person()) is not None and self._displace_for(person):
            self._seat(person)

    def _seat(self, sequence: Sequence) -> bool:
        if not self._admission.seat(sequence, self._scheduler.running):
            return False
        self._scheduler.start(sequence)
        sequence.move(SequenceStatus.PREFILL)
        self._report_reading(sequence)
        return True

    def _displace_for(self, person: Sequence) -> bool:
        """Make room for somebody who waits at the cost of work that nobody waits for; False, and nothing happens, when
        even all of that is too little."""
        staying, leaving = list(self._scheduler.running), []
        for sequence in self._scheduler.background(person):
            staying.remove(sequence)
            leaving.append(sequence)
            if self._admission.has_room(person, staying):
                for victim in leaving:
                    self._preempt(victim)
                return True
        return False

    def _preempt(self, sequence: Sequence) -> None:
        """Take the slot from a running sequence. It waits at its old rank, keeps its tokens and evaluates again what
        the cache has lost of them by then; its draws are counted, so its answer goes on as if nothing had been."""
        self._admission.release(sequence)
        self._scheduler.put_back(sequence)
        sequence.move(SequenceStatus.WAITING)
        sequence.num_preemptions += 1
        self.totals.num_preemptions += 1
        log.info("preempted", key=str(sequence.key), num_tokens=sequence.num_tokens, priority=sequence.priority)

    def _plan(self) -> list[Work]:
        """The work of the next step, for which there is room in the KV memory: where there is not, somebody waits
        again. Whoever is left alone always has room."""
        while work := self._scheduler.plan():
            while work and not self._admission.make_room(sum(w.num_tokens for w in work)):
                victim = self._scheduler.least_needed()
                self._preempt(victim)
                work = [w for w in work if w.sequence is not victim]
            if work:
                break
        return work

    def _fill_batch(self, work: list[Work]) -> list[Work]:
        """Single tokens first, all at once, then the chunks of prompts; both by slot, which is the order in which
        separate streams are cheapest (`llama/layout.py`). Returns the work in the order of the batch."""
        self._batch.clear()
        rows = sorted((w for w in work if w.num_tokens == 1 and w.wants_logits), key=_slot_of)
        chunks = sorted((w for w in work if w.num_tokens > 1 or not w.wants_logits), key=_slot_of)
        if rows:
            self._batch.add_rows(
                [_slot_of(w) for w in rows],
                [w.sequence.history.newest for w in rows],
                [w.sequence.num_evaluated for w in rows],
            )
        for w in chunks:
            start = w.sequence.num_evaluated
            tokens = w.sequence.history.part(start, start + w.num_tokens)
            self._batch.add(_slot_of(w), tokens, start, wants_logits=w.wants_logits)
        return rows + chunks

    def _note_evaluated(self, work: list[Work]) -> int:
        """Write down what a successful forward did; returns how many prefill tokens it held."""
        num_prefilled = 0
        for w in work:
            sequence = w.sequence
            self._admission.extend(sequence, w.num_tokens)
            if sequence.status is SequenceStatus.PREFILL:
                num_prefilled += w.num_tokens
                self._report_reading(sequence)
                if sequence.num_pending == 0:
                    sequence.is_suspect = False
                    sequence.move(SequenceStatus.DECODE)
        return num_prefilled

    def _advance(self, sequence: Sequence, token: int, logprobs: Logprobs | None) -> None:
        if token == BAD_ROW:
            self.totals.num_bad_rows += 1
            log.warning("bad logits", key=str(sequence.key), num_tokens=sequence.num_tokens)
            self._admission.clear(sequence)  # nobody shall go on from a cache that led to no number
            self._end(sequence, FinishReason.ERROR, BadLogits("The model returned no usable number for this answer."))
            return
        if token == UNDECIDED:
            self._look_whole(sequence)
            return
        if token == NOTHING_ALLOWED:
            self._end(sequence, FinishReason.ERROR, _NOTHING_ALLOWED)
            return
        self.totals.num_decoded_tokens += 1
        if token in self._end_tokens:
            self._end(sequence, FinishReason.STOP)
            return
        sequence.history.append(token)
        self._outbox.append((sequence, Token(token, logprobs)))
        if sequence.constraint is not None and self._is_over(sequence, sequence.constraint, token):
            return
        if sequence.is_full:
            self._end(sequence, FinishReason.LENGTH)

    def _look_whole(self, sequence: Sequence) -> None:
        """The device's excerpt did not decide: evaluate the newest token again, and have this slot's rows whole."""
        self.totals.num_undecided_rows += 1
        self._want_whole(sequence)
        self._admission.take_back(sequence)

    def _want_whole(self, sequence: Sequence) -> None:
        """From the next forward on, and to the end: changing it back and forth costs a device more than whole rows."""
        assert sequence.slot is not None
        sequence.wants_whole_rows = True
        self._backend.set_whole(sequence.slot, True)

    def _is_over(self, sequence: Sequence, constraint: Constraint, token: int) -> bool:
        """Whether the answer's constraint, going on past `token`, ended the answer."""
        try:
            constraint.accept(token)
        except InferenceError as error:  # a schema can turn out to be too complex, or impossible, only here
            self._end(sequence, FinishReason.ERROR, error)
            return True
        if constraint.is_complete:
            self._end(sequence, FinishReason.STOP)
        elif not constraint.is_open and not sequence.wants_whole_rows:
            self._want_whole(sequence)
        return constraint.is_complete

    def _recover(self, work: list[Work], error: EngineError) -> None:
        """After a failed forward the KV of everybody on board is unknown: clear it, then recompute or end each."""
        for w in work:
            sequence = w.sequence
            self._admission.clear(sequence)
            sequence.num_failures += 1
            if sequence.is_suspect or sequence.num_failures >= MAX_FAILURES:  # suspects fail alone
                self._end(sequence, FinishReason.ERROR, error)
            else:
                sequence.is_suspect = True
                sequence.move(SequenceStatus.PREFILL)

    def _end(self, sequence: Sequence, reason: FinishReason, error: InferenceError | None = None) -> None:
        self._scheduler.remove(sequence)
        sequence.move(SequenceStatus.ENDED)
        self._admission.release(sequence)
        cut = sequence.full_by if reason is FinishReason.LENGTH else ""
        self._outbox.append((sequence, Ended(reason, sequence.num_cached, facts_of(error) if error else None, cut)))

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
        self._admission.check_integrity(self._scheduler.running)
        for sequence in self._scheduler.waiting:
            assert sequence.slot is None
            assert sequence.status is SequenceStatus.WAITING


def _slot_of(work: Work) -> int:
    assert work.sequence.slot is not None
    return work.sequence.slot


def facts_of(error: InferenceError) -> ErrorFacts:
    return ErrorFacts(code=error.code, message=error.message, retryable=error.retryable)
