"""Who is evaluated in the next step, and how many tokens of each. Policy alone: plain Python, no device, no threads.

Owns the waiting line in front of the slots, the list of running sequences and the measure of what a step costs. The
engine calls it once per step, on its thread.

One step holds a row for every decoding sequence, then prefill chunks. The chunks' budget keeps the step near
`target_itl_ms` while somebody decodes, and never falls below `min_chunk_tokens` while somebody reads: neither kind
of work can stop the other. One half of the budget goes to the prompt with the least left to read, the other to the one
that has gone longest without a chunk; so of n prompts each gets a chunk at least every n steps, whatever arrives.
"""

from __future__ import annotations

from dataclasses import dataclass

from inference.engine.sequence import Sequence, SequenceStatus

AGEING_SECONDS = 10.0  # so long a wait outweighs one level of priority
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
    def __init__(self, *, max_batch_tokens: int, target_itl_ms: float, min_chunk_tokens: int) -> None:
        assert min(max_batch_tokens, min_chunk_tokens) > 0, (max_batch_tokens, min_chunk_tokens)
        self.target_itl_ms = target_itl_ms
        self.decode_step_ms = 0.0  # mean step with decode rows alone; 0 = not measured
        self.ms_per_prefill_token = 0.0  # what a prompt token adds to a step; 0 = not measured
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self._max_batch_tokens = max_batch_tokens
        self._min_chunk_tokens = min_chunk_tokens
        self._step = 0
        self._is_healthy_turn = False

    # The waiting line

    def enqueue(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def next_waiting(self) -> Sequence | None:
        """Who gets the next free slot: the most urgent, where waiting makes urgent; first come among equals.

        All age at the same rate, so the order never changes while they wait.
        """
        return min(self.waiting, key=lambda s: (s.arrived_at + s.priority * AGEING_SECONDS, s.arrival), default=None)

    def start(self, sequence: Sequence) -> None:
        """Move a waiting sequence among the running; it has a slot now."""
        self.waiting.remove(sequence)
        self.running.append(sequence)
        sequence.last_chunk_step = self._step

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
        return [Work(suspect, min(suspect.num_pending, self._prefill_budget(num_decoding, self._max_batch_tokens)))]

    def observe(self, *, num_prefill_tokens: int, seconds: float) -> None:
        """Learn what a whole step cost, sampling included."""
        ms = seconds * 1000.0
        if num_prefill_tokens == 0:
            self.decode_step_ms = _mean(self.decode_step_ms, ms, _NEW_WEIGHT)
        elif self.ms_per_prefill_token or num_prefill_tokens >= self._min_chunk_tokens:
            # What a step costs at least is no prompt token's fault, and a chunk of few tokens says little of each.
            cost = max(ms - self.decode_step_ms, 0.0) / num_prefill_tokens
            weight = _NEW_WEIGHT * min(1.0, num_prefill_tokens / self._min_chunk_tokens)
            self.ms_per_prefill_token = _mean(self.ms_per_prefill_token, cost, weight)

    def _plan_shared(self, sequences: list[Sequence]) -> list[Work]:
        decoding = [s for s in sequences if s.status is SequenceStatus.DECODE]
        work = [Work(s, 1) for s in decoding]
        prompts = [s for s in sequences if s.status is SequenceStatus.PREFILL]
        if prompts:
            work += self._share(prompts, self._prefill_budget(len(decoding), self._max_batch_tokens - len(decoding)))
        return work

    def _prefill_budget(self, num_decoding: int, room: int) -> int:
        """Prompt tokens that the next step may hold beside `num_decoding` rows."""
        assert room > 0, "the batch has no room beside the decode rows"
        if not num_decoding:
            return room
        if self.ms_per_prefill_token:
            budget = int((self.target_itl_ms - self.decode_step_ms) / self.ms_per_prefill_token)
        else:
            budget = _UNMEASURED_CHUNKS * self._min_chunk_tokens
        return min(room, max(self._min_chunk_tokens, budget))

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


def _mean(mean: float, new: float, weight: float) -> float:
    if mean == 0.0:
        return new
    return mean + weight * (min(new, _MAX_SURPRISE * mean) - mean)
