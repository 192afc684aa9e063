"""Who is evaluated in the next step, and how many tokens of each. Policy alone: plain Python, no device, no threads.

Owns the waiting line in front of the slots, the list of running sequences and the measure of what a step costs. The
engine calls it once per step, on its thread.

One step holds a row for every decoding sequence, then prefill chunks. The chunks' budget keeps the step near
`target_itl_ms` while somebody decodes, and never falls below `min_chunk_tokens` while somebody reads: neither kind
of work can stop the other. What would fill more than one such step is read more gently still, so that those who decode
see their own pace divided by `MAX_STRETCH` at worst, however far below the target it was. One half of the budget goes
to the prompt with the least left to read, the other to the one that has gone longest without a chunk; so of n prompts
each gets a chunk at least every n steps, whatever arrives.

Where any chunk costs a step much, however short, prompts that come one after the other are gathered for `gather_steps`
before the first of them is read beside decoding rows, so that they share that cost.
"""

from __future__ import annotations

from dataclasses import dataclass

from inference.engine.prefill_cost import CostLine
from inference.engine.sequence import Sequence, SequenceStatus

AGEING_SECONDS = 10.0  # so long a wait outweighs one level of priority
MAX_STRETCH = 2.5  # a step beside a long prompt, against one without
_NEW_WEIGHT = 0.2  # of a new measurement against the mean so far
_MAX_SURPRISE = 4.0  # a measurement counts for at most so many times the mean: one hiccup must not empty the chunks
_UNMEASURED_CHUNKS = 4  # budget beside decoding rows, in minimum chunks, before anything was measured


@dataclass(frozen=True, slots=True)
class Work:
    """`num_tokens` of a sequence's pending tokens, to be evaluated in this step."""

    sequence: Sequence
    num_tokens: int

    @property
    def wants_logits(self) -> bool:
        """Logits follow only when nothing stays pending."""
        return self.num_tokens == self.sequence.num_pending


class Scheduler:
    def __init__(
        self, *, max_batch_tokens: int, target_itl_ms: float, min_chunk_tokens: int, gather_steps: int = 0
    ) -> None:
        assert min(max_batch_tokens, min_chunk_tokens) > 0, (max_batch_tokens, min_chunk_tokens)
        self.target_itl_ms = target_itl_ms
        self.decode_step_ms = 0.0  # mean step with decode rows alone; 0 = not measured
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self._max_batch_tokens = max_batch_tokens
        self._min_chunk_tokens = min_chunk_tokens
        self._gather_steps = gather_steps
        # By magnitude of the number of rows: 8 to 15 cost about the same, 1 and 32 do not.
        self._decode_ms: dict[int, float] = {}
        self._prefill = CostLine()
        self._step = 0
        self._is_healthy_turn = False

    @property
    def ms_per_prefill_token(self) -> float:
        """What a prompt token adds to a step on average; 0 = not measured."""
        return self._prefill.ms_per_token

    # The waiting line

    def enqueue(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def next_waiting(self) -> Sequence | None:
        """Who is seated next: the most urgent, where waiting makes urgent; first come among equals.

        All age at the same rate, so the order never changes while they wait.
        """
        return min(self.waiting, key=_rank, default=None)

    def next_person(self) -> Sequence | None:
        """The first of those waiting for whom a person waits; None when none does."""
        return min((s for s in self.waiting if s.priority <= 0), key=_rank, default=None)

    def background(self, person: Sequence) -> list[Sequence]:
        """Running sequences for which nobody waits and that may have to wait for `person`; the first should first.

        One that was there so long before that its age outweighs its priority is not among them: it may finish.
        """
        found = [s for s in self.running if s.priority > 0 and _rank(s) > _rank(person)]
        return sorted(found, key=lambda s: (s.priority, s.arrival), reverse=True)

    def least_needed(self) -> Sequence:
        """Whom of the running to preempt when the KV memory is full: the least urgent, of these the newest."""
        return max(self.running, key=lambda s: (s.priority, s.arrival))

    def start(self, sequence: Sequence) -> None:
        """Move a waiting sequence among the running; it has a slot now."""
        self.waiting.remove(sequence)
        self.running.append(sequence)
        sequence.num_to_read = sequence.num_pending
        sequence.last_chunk_step = self._step

    def put_back(self, sequence: Sequence) -> None:
        """Move a running sequence, which has lost its slot, to its old rank among the waiting."""
        self.running.remove(sequence)
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence, wherever it stands."""
        (self.waiting if sequence.status is SequenceStatus.WAITING else self.running).remove(sequence)

    # The step

    def plan(self) -> list[Work]:
        """The work of the next step, decode rows first; empty when nobody runs."""
        self._step += 1
        suspects = [s for s in self.running if s.is_suspect]
        if not suspects:
            return self._plan_shared(self.running)
        healthy = [s for s in self.running if not s.is_suspect]
        self._is_healthy_turn = bool(healthy) and not self._is_healthy_turn
        if self._is_healthy_turn:
            return self._plan_shared(healthy)
        # Whoever was on board of a failed forward is recomputed alone: if it was the cause, it fails alone.
        suspect = min(suspects, key=lambda s: (s.num_pending, s.arrival))
        num_decoding = sum(s.status is SequenceStatus.DECODE for s in healthy)
        budget = self._prefill_budget([suspect], num_decoding, self._max_batch_tokens)
        return [Work(suspect, min(suspect.num_pending, budget))]

    def observe(self, *, num_decoding: int, num_prefill_tokens: int, seconds: float) -> None:
        """Learn what a whole step cost, sampling included."""
        ms = seconds * 1000.0
        magnitude = num_decoding.bit_length()
        if num_prefill_tokens == 0:
            self.decode_step_ms = _mean(self.decode_step_ms, ms, _NEW_WEIGHT)
            self._decode_ms[magnitude] = _mean(self._decode_ms.get(magnitude, 0.0), ms, _NEW_WEIGHT)
        elif self._prefill.is_known or num_prefill_tokens >= self._min_chunk_tokens:
            # What a step costs at least is no prompt token's fault, and a chunk of few tokens says little of each.
            added = max(ms - self._decode_ms.get(magnitude, self.decode_step_ms), 0.0)
            weight = min(1.0, num_prefill_tokens / self._min_chunk_tokens)
            self._prefill.observe(num_prefill_tokens, added, weight=weight)

    def _plan_shared(self, sequences: list[Sequence]) -> list[Work]:
        decoding = [s for s in sequences if s.status is SequenceStatus.DECODE]
        work = [Work(s, 1) for s in decoding]
        prompts = [s for s in sequences if s.status is SequenceStatus.PREFILL]
        if prompts and not (decoding and self._is_gathering(prompts)):
            room = self._max_batch_tokens - len(decoding)
            work += self._share(prompts, self._prefill_budget(prompts, len(decoding), room))
        return work

    def _prefill_budget(self, prompts: list[Sequence], num_decoding: int, room: int) -> int:
        """Prompt tokens that the next step may hold beside `num_decoding` rows."""
        assert room > 0, "the batch has no room beside the decode rows"
        if not num_decoding:
            return room
        if not self._prefill.is_known:
            return min(room, _UNMEASURED_CHUNKS * self._min_chunk_tokens)
        decode_ms = self._decode_ms.get(num_decoding.bit_length())
        spare_ms = self.target_itl_ms - (self.decode_step_ms if decode_ms is None else decode_ms)
        # Short prompts are through in a step or two, which a reader does not notice; a long one would go on and on.
        if decode_ms is not None and any(self._prefill.cost(s.num_to_read) > spare_ms for s in prompts):
            spare_ms = min(spare_ms, (MAX_STRETCH - 1) * decode_ms)
        return min(room, max(self._min_chunk_tokens, self._prefill.affordable(spare_ms)))

    def _is_gathering(self, prompts: list[Sequence]) -> bool:
        """Whether all of these came just now, so that others may follow and be read with them in one go."""
        return all(
            s.num_pending == s.num_to_read and self._step - s.last_chunk_step <= self._gather_steps for s in prompts
        )

    def _share(self, prompts: list[Sequence], budget: int) -> list[Work]:
        by_shortest = sorted(prompts, key=lambda s: (s.priority, s.num_pending, s.arrival))
        first = by_shortest.pop(0)
        if not by_shortest:
            return [self._chunk(first, min(first.num_pending, budget))]
        eldest = min(by_shortest, key=lambda s: (s.last_chunk_step, s.arrival))
        by_shortest.remove(eldest)
        if budget == 1:
            return [self._chunk(min(first, eldest, key=lambda s: (s.last_chunk_step, s.arrival)), 1)]
        num_first = min(first.num_pending, budget - min(eldest.num_pending, budget // 2))
        num_eldest = min(eldest.num_pending, budget - num_first)
        work = [self._chunk(first, num_first), self._chunk(eldest, num_eldest)]
        budget -= num_first + num_eldest
        for sequence in by_shortest:
            if budget == 0:
                break
            work.append(self._chunk(sequence, min(sequence.num_pending, budget)))
            budget -= work[-1].num_tokens
        return work

    def _chunk(self, sequence: Sequence, num_tokens: int) -> Work:
        sequence.last_chunk_step = self._step
        return Work(sequence, num_tokens)


def _rank(sequence: Sequence) -> tuple[float, int]:
    return sequence.arrived_at + sequence.priority * AGEING_SECONDS, sequence.arrival


def _mean(mean: float, new: float, weight: float) -> float:
    if mean == 0.0:
        return new
    return mean + weight * (min(new, _MAX_SURPRISE * mean) - mean)
