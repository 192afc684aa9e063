"""Decode rows are in every step, prompts share what is left and none starves, and the chunk follows what steps cost."""

from __future__ import annotations

from uuid import uuid4

import pytest

from inference.engine.engine import Submission
from inference.engine.scheduler import MAX_STRETCH, Scheduler, Work
from inference.engine.sequence import Sequence, SequenceStatus
from inference.testing import ScriptedBackend
from tests.engine.driving import GREEDY, alone, ids, make_engine, run, slot_contents, submit


class Line:
    """Sequences in front of a scheduler, evaluated as it plans."""

    def __init__(self, **options):
        options = {"max_batch_tokens": 64, "target_itl_ms": 100.0, "min_chunk_tokens": 8} | options
        self.scheduler = Scheduler(**options)
        self.num_arrived = 0

    def add(self, num_tokens: int, *, decoding: bool = False, priority: int = 0) -> Sequence:
        submission = Submission(
            uuid4(), ids([1] * num_tokens), ids([]), GREEDY, 10_000, "", priority, lambda output: None
        )
        sequence = Sequence(submission, context_tokens=100_000, arrival=self.num_arrived, arrived_at=0.0)
        self.num_arrived += 1
        self.scheduler.enqueue(sequence)
        self.scheduler.start(sequence)
        sequence.move(SequenceStatus.PREFILL)
        if decoding:
            sequence.num_evaluated = num_tokens - 1
            sequence.move(SequenceStatus.DECODE)
        return sequence

    def step(self) -> list[Work]:
        work = self.scheduler.plan()
        for w in work:
            if w.sequence.status is SequenceStatus.PREFILL:
                w.sequence.num_evaluated += w.num_tokens
                if w.sequence.num_pending == 0:
                    w.sequence.history.append(1)
                    w.sequence.move(SequenceStatus.DECODE)
        return work


def tokens_of(work: list[Work], sequence: Sequence) -> int:
    return sum(w.num_tokens for w in work if w.sequence is sequence)


def test_every_step_with_running_decodes_holds_all_their_rows():
    line = Line()
    decoding = [line.add(5, decoding=True) for _ in range(6)]
    line.add(5_000)
    for _ in range(50):
        work = line.step()
        assert [w.sequence for w in work[:6]] == decoding
        assert all(w.num_tokens == 1 for w in work[:6])
        assert 8 <= sum(w.num_tokens for w in work[6:]) <= 58


def test_two_prompts_share_a_step_evenly():
    line = Line()
    long, longer = line.add(1_000), line.add(2_000)
    work = line.step()
    assert tokens_of(work, long) == tokens_of(work, longer) == 32


def test_share_that_one_prompt_does_not_need_goes_to_the_others():
    line = Line()
    short, longer, third = line.add(4), line.add(2_000), line.add(1_500)
    work = line.step()
    assert tokens_of(work, short) == 4
    assert sum(w.num_tokens for w in work) == 64
    assert tokens_of(work, longer) + tokens_of(work, third) == 60


def test_shortest_remaining_prompt_is_done_first():
    line = Line()
    line.add(1_000)
    line.add(800)
    short = line.add(90)
    steps = 0
    while short.status is SequenceStatus.PREFILL:
        line.step()
        steps += 1
        assert steps < 4
    assert short.status is SequenceStatus.DECODE


def test_long_prompt_gets_on_although_short_ones_never_end():
    line = Line(max_batch_tokens=16)
    long = line.add(400)
    steps_without = 0
    for _ in range(1_000):
        while len(line.scheduler.running) < 8:  # whenever a short one is through, another is there
            line.add(12)
        work = line.step()
        steps_without = 0 if tokens_of(work, long) else steps_without + 1
        assert steps_without < 8
        for sequence in list(line.scheduler.running):
            if sequence.status is SequenceStatus.DECODE:
                line.scheduler.remove(sequence)
        if long.status is SequenceStatus.DECODE:
            return
    raise AssertionError("the long prompt starved")


def test_urgent_prompt_goes_before_a_shorter_one():
    line = Line()
    line.add(100, priority=1)
    line.add(101, priority=1)
    urgent = line.add(500)
    assert line.step()[0].sequence is urgent


def test_budget_of_one_token_alternates():
    line = Line(max_batch_tokens=2, min_chunk_tokens=1)
    line.add(3, decoding=True)
    one, other = line.add(10), line.add(10)
    served = [line.step()[1].sequence for _ in range(4)]
    assert served.count(one) == served.count(other) == 2


def simulate(line: Line, num_steps: int, *, decode_ms: float, ms_per_token: float) -> list[tuple[int, float]]:
    steps = []
    for _ in range(num_steps):
        num_decoding = sum(s.status is SequenceStatus.DECODE for s in line.scheduler.running)
        num_prefill = sum(w.num_tokens for w in line.step()) - num_decoding
        ms = decode_ms + num_prefill * ms_per_token
        line.scheduler.observe(num_decoding=num_decoding, num_prefill_tokens=num_prefill, seconds=ms / 1000)
        steps.append((num_prefill, ms))
    return steps


@pytest.mark.parametrize("ms_per_token", [0.05, 0.5, 3.0])
def test_chunk_settles_where_the_step_meets_the_target(ms_per_token):
    line = Line(max_batch_tokens=2048)
    line.add(5, decoding=True)
    simulate(line, 5, decode_ms=60.0, ms_per_token=ms_per_token)
    line.add(90_000)
    steps = simulate(line, 30, decode_ms=60.0, ms_per_token=ms_per_token)
    num_prefill, ms = steps[-1]
    assert ms <= 100.5
    assert num_prefill == pytest.approx(40 / ms_per_token, rel=0.08)


def test_long_prompt_leaves_fast_answers_their_pace_and_short_ones_go_through():
    line = Line(max_batch_tokens=2048)
    for _ in range(8):
        line.add(5, decoding=True)
    costs = {"decode_ms": 8.0, "ms_per_token": 0.05}
    simulate(line, 5, **costs)
    line.add(30_000)
    assert simulate(line, 30, **costs)[-1][1] == pytest.approx(8.0 * MAX_STRETCH, rel=0.1)
    line = Line(max_batch_tokens=2048)
    line.add(5, decoding=True)
    simulate(line, 5, **costs)
    line.add(1_000)
    simulate(line, 10, **costs)
    for _ in range(2):
        line.add(800)
    assert simulate(line, 1, **costs)[0][0] == 1_600, "a wave of short prompts is through at once"


def test_pace_of_other_numbers_of_answers_is_no_measure():
    line = Line(max_batch_tokens=2048)
    line.add(5, decoding=True)
    simulate(line, 20, decode_ms=2.0, ms_per_token=0.05)
    for _ in range(30):
        line.add(5, decoding=True)
    line.add(30_000)
    assert simulate(line, 10, decode_ms=9.0, ms_per_token=0.05)[-1][1] > 50


def test_target_out_of_reach_still_prefills_the_minimum():
    line = Line(target_itl_ms=5.0)
    line.add(5, decoding=True)
    simulate(line, 5, decode_ms=50.0, ms_per_token=10.0)
    line.add(1_000)
    assert [n for n, _ in simulate(line, 20, decode_ms=50.0, ms_per_token=10.0)][-1] == 8


def test_without_decodes_the_whole_batch_is_prefill():
    line = Line(max_batch_tokens=512, target_itl_ms=1.0)
    line.add(2_000)
    assert [n for n, _ in simulate(line, 2, decode_ms=0.0, ms_per_token=10.0)] == [512, 512]


def test_one_hiccup_does_not_empty_the_chunks():
    line = Line(max_batch_tokens=512)
    line.add(5, decoding=True)
    simulate(line, 5, decode_ms=10.0, ms_per_token=0.5)
    line.add(50_000)
    before = simulate(line, 10, decode_ms=10.0, ms_per_token=0.5)[-1][0]
    line.scheduler.observe(num_decoding=1, num_prefill_tokens=line.step()[-1].num_tokens, seconds=30.0)
    after = simulate(line, 1, decode_ms=10.0, ms_per_token=0.5)[0][0]
    assert after > before / 2


def test_one_token_prefills_do_not_spoil_the_measure():
    line = Line(max_batch_tokens=512)
    line.add(5, decoding=True)
    simulate(line, 5, decode_ms=20.0, ms_per_token=0.1)
    for _ in range(50):
        line.scheduler.observe(num_decoding=1, num_prefill_tokens=1, seconds=0.021)
    line.scheduler.observe(num_decoding=1, num_prefill_tokens=100, seconds=0.030)
    assert line.scheduler.ms_per_prefill_token < 1.0


def test_long_prompt_among_short_ones_does_not_stall_decode():
    backend = ScriptedBackend(num_slots=4, context_tokens=1200, max_batch_tokens=32)
    engine = make_engine(backend, min_chunk_tokens=4)
    chats = [submit(engine, [n, 2, 3], max_tokens=60) for n in (4, 5, 6)]
    for _ in range(3):
        engine.step()
    long = submit(engine, [n % 90 + 1 for n in range(1000)], max_tokens=5)
    while any(s.status is SequenceStatus.PREFILL for s in engine._loop._scheduler.running) or not long.readings:
        decoding = {s.slot for s in engine._loop._scheduler.running if s.status is SequenceStatus.DECODE}
        engine.step()
        assert decoding <= {piece.slot for piece in backend.pieces[-1]}
        assert any(len(piece.tokens) > 1 for piece in backend.pieces[-1]), "the prompt gets on too"
    run(engine)
    assert [c.tokens for c in chats] == [alone([n, 2, 3], max_tokens=60) for n in (4, 5, 6)]


class Device(ScriptedBackend):
    """A backend whose forwards take time on a clock of its own: so many ms each, and more for each token but one."""

    def __init__(self, *, decode_ms: float, ms_per_token: float, **options):
        super().__init__(**options)
        self.now = 0.0
        self._pending = 0.0
        self._costs = decode_ms, ms_per_token

    def forward(self, batch):
        super().forward(batch)
        decode_ms, ms_per_token = self._costs
        self._pending = (decode_ms + ms_per_token * (batch.num_tokens - batch.num_logit_rows)) / 1000
        if not self.is_async:
            self._pass()

    def logits(self):
        self._pass()
        return super().logits()

    def _pass(self):
        self.now, self._pending = self.now + self._pending, 0.0


@pytest.mark.parametrize("is_async", [False, True])
def test_observed_step_is_the_whole_of_it_also_where_forward_returns_early(is_async):
    backend = Device(decode_ms=8.0, ms_per_token=0.25, is_async=is_async)
    engine = make_engine(backend, clock=lambda: backend.now)
    submit(engine, [1, 2, 3], max_tokens=30)
    for _ in range(10):
        engine.step()
    assert engine.stats().decode_step_ms == pytest.approx(8.0)
    submit(engine, range(1, 91), max_tokens=2)
    run(engine)
    assert engine.stats().ms_per_prefill_token == pytest.approx(0.25, rel=0.1)


def test_answers_keep_a_third_of_their_pace_beside_a_prompt_of_30_000_tokens():
    backend = Device(
        decode_ms=8.0,
        ms_per_token=0.05,
        num_slots=9,
        context_tokens=32_000,
        max_batch_tokens=2_048,
        is_async=True,
        script=lambda history: len(history) % 90 + 1,
    )
    engine = make_engine(backend, clock=lambda: backend.now)
    chats = [submit(engine, [n, 2, 3], max_tokens=5_000) for n in range(1, 9)]
    for _ in range(20):
        engine.step()
    long = submit(engine, [n % 90 + 1 for n in range(30_000)], max_tokens=1)
    gaps, num_before = [], [len(chat.tokens) for chat in chats]
    while not long.tokens:
        before, num_steps = backend.now, len(gaps)
        engine.step()
        gaps.append(backend.now - before)
        assert len(backend.pieces[-1]) == 9 or num_steps == 0 or long.ended, "all eight and the prompt"
        assert sum(len(piece.tokens) for piece in backend.pieces[-1]) <= 2_048
    gaps.sort()
    assert gaps[len(gaps) * 99 // 100] < 3 * 0.008
    assert all(len(chat.tokens) - n >= len(gaps) - 2 for chat, n in zip(chats, num_before))
    assert backend.now < 5.0, "and the prompt is not put off for it"


def test_endless_prefills_never_starve_a_decode_nor_one_another():
    backend = ScriptedBackend(num_slots=4, context_tokens=600, max_batch_tokens=64)
    engine = make_engine(backend)
    stream = submit(engine, [1, 2, 3], max_tokens=500)
    engine.step()
    prompts, num_steps = [], 0
    while not stream.ended:
        while sum(p.ended is None for p in prompts) < 8:
            prompts.append(submit(engine, [len(prompts) % 90 + 2] * 400, max_tokens=1))
        num_tokens = len(stream.tokens)
        engine.step()
        num_steps += 1
        assert len(stream.tokens) > num_tokens or num_steps == 1 or stream.ended
    assert sum(p.ended is not None for p in prompts) > num_steps * 32 // 400
    slot_contents(engine, backend)
    assert stream.tokens == alone([1, 2, 3], max_tokens=500, backend={"context_tokens": 600})


def test_prompts_that_come_one_after_the_other_are_read_together_beside_decodes():
    line = Line(gather_steps=2)
    line.add(5, decoding=True)
    first = line.add(6)
    assert tokens_of(line.step(), first) == 0
    second = line.add(6)
    assert tokens_of(line.step(), first) == 0
    work = line.step()
    assert (tokens_of(work, first), tokens_of(work, second)) == (6, 6)


def test_nobody_gathers_when_nobody_decodes_or_another_prompt_is_under_way():
    line = Line(gather_steps=2)
    alone = line.add(6)
    assert tokens_of(line.step(), alone) == 6
    long = line.add(500)
    for _ in range(3):
        line.step()
    late = line.add(6)
    work = line.step()
    assert tokens_of(work, late) == 6
    assert tokens_of(work, long) > 0
