"""A fault ends whom it concerns and nobody else; whatever happens, every sequence gets Ended exactly once."""

from __future__ import annotations

import threading

import pytest

from inference.engine.engine import Token
from inference.errors import EngineStopped
from inference.messages.generation import FinishReason
from inference.testing import ScriptedBackend
from tests.engine.driving import Answer, alone, make_engine, run, slot_contents, submit

POISON = 66


def is_poisoned(pieces) -> bool:
    return any(p.tokens[:3] == (POISON, POISON, POISON) for p in pieces)


PROMPTS = [[1, 2, 3], list(range(10, 50)), [5, 6]]


def test_row_without_a_finite_maximum_fails_alone():
    backend = ScriptedBackend(nan_when=lambda history: POISON in history)
    engine = make_engine(backend)
    good = [submit(engine, p, max_tokens=6) for p in PROMPTS]
    bad = submit(engine, [POISON, 2], max_tokens=6)
    run(engine)
    assert bad.ended.reason is FinishReason.ERROR
    assert bad.ended.error.code == "bad_logits"
    assert [a.tokens for a in good] == [alone(p, max_tokens=6) for p in PROMPTS]
    assert engine.stats().num_bad_rows == 1
    slot_contents(engine, backend)
    assert all(POISON not in backend.tokens_in(slot) for slot in range(4)), "its KV must not serve as cache"


@pytest.mark.parametrize("fails_late", [False, True])
@pytest.mark.parametrize("number", [1, 2, 4])
def test_failed_forward_is_recomputed_and_changes_no_answer(number, fails_late):
    backend = ScriptedBackend(fail_forwards={number}, fails_late=fails_late, max_batch_tokens=24)
    engine = make_engine(backend)
    answers = [submit(engine, p, max_tokens=6) for p in PROMPTS]
    run(engine)
    assert [a.tokens for a in answers] == [alone(p, max_tokens=6) for p in PROMPTS]
    assert all(a.ended.error is None for a in answers)
    assert engine.stats().num_failed_forwards == 1
    slot_contents(engine, backend)


def test_lone_sequence_is_retried_once_then_failed():
    backend = ScriptedBackend(fail_when=lambda pieces: True)
    engine = make_engine(backend)
    answer = submit(engine, [1, 2, 3])
    run(engine)
    assert backend.forwards_begun == 2
    assert answer.ended.reason is FinishReason.ERROR
    assert answer.ended.error.code == "engine_error"
    assert answer.ended.error.retryable


def test_only_the_cause_of_a_failed_forward_fails():
    backend = ScriptedBackend(fail_when=is_poisoned)
    engine = make_engine(backend)
    good = [submit(engine, p, max_tokens=8) for p in PROMPTS]
    engine.step()
    engine.step()
    bad = submit(engine, [POISON, POISON, POISON], max_tokens=8)
    run(engine)
    assert bad.ended.reason is FinishReason.ERROR
    assert [a.tokens for a in good] == [alone(p, max_tokens=8) for p in PROMPTS]


def test_one_bad_submission_after_another_harms_nobody():
    backend = ScriptedBackend(num_slots=2, fail_when=is_poisoned)
    engine = make_engine(backend)
    prompts = [[n, n + 1, n + 2] for n in range(1, 4)]
    bad = [submit(engine, [POISON, POISON, POISON, n], max_tokens=8) for n in range(20)]
    good = [submit(engine, p, max_tokens=8, priority=-1) for p in prompts]
    run(engine)
    assert all(a.ended.reason is FinishReason.ERROR for a in bad)
    assert [a.tokens for a in good] == [alone(p, max_tokens=8) for p in prompts]


def test_device_that_fails_in_company_only_ends_in_bounded_time():
    backend = ScriptedBackend(fail_when=lambda pieces: len(pieces) > 1)
    engine = make_engine(backend)
    answers = [submit(engine, [n, 2, 3], max_tokens=50) for n in range(1, 5)]
    run(engine)
    assert all(a.ended is not None for a in answers)
    assert backend.forwards_begun < 500


def test_sequence_can_be_cancelled_while_it_awaits_recomputing():
    backend = ScriptedBackend(fail_forwards={2})
    engine = make_engine(backend)
    answers = [submit(engine, p, max_tokens=6) for p in PROMPTS]
    engine.step()
    engine.step()
    engine.cancel(answers[0].key)
    run(engine)
    assert answers[0].ended.reason is FinishReason.CANCELLED
    assert answers[1].tokens == alone(PROMPTS[1], max_tokens=6)


def test_broken_sink_ends_its_own_sequence():
    engine = make_engine(ScriptedBackend())
    heard = []

    def breaks(output):
        heard.append(output)
        if isinstance(output, Token):
            raise ValueError("broken")

    submit(engine, [9, 8, 7], max_tokens=100, sink=breaks)
    good = submit(engine, [1, 2, 3], max_tokens=30)
    run(engine)
    assert good.tokens == alone([1, 2, 3], max_tokens=30)
    assert len([o for o in heard if isinstance(o, Token)]) <= 2, "one more may be on its way"
    assert heard[-1].reason is FinishReason.CANCELLED


class Waiter(Answer):
    """An Answer that another thread can wait for."""

    def __init__(self) -> None:
        super().__init__(key=None)  # type: ignore[arg-type]
        self.has_token = threading.Event()
        self.has_ended = threading.Event()

    def __call__(self, output):
        super().__call__(output)
        if isinstance(output, Token):
            self.has_token.set()
        if self.ended:
            self.has_ended.set()


def test_thread_answers_and_drains_and_stops():
    backend = ScriptedBackend()
    engine = make_engine(backend)
    engine.start()
    answers = [submit(engine, p, max_tokens=6) for p in PROMPTS]
    assert engine.drain(10)
    assert [a.tokens for a in answers] == [alone(p, max_tokens=6) for p in PROMPTS]
    assert engine.stats().is_alive
    assert engine.stop(10)
    assert backend.is_closed
    assert not engine.stats().is_alive
    assert engine.stats().error is None
    with pytest.raises(EngineStopped):
        submit(engine, [1])


def test_tokens_do_not_wait_for_the_next_forward():
    gate = threading.Event()
    gate.set()
    backend = ScriptedBackend(gate=gate)
    engine = make_engine(backend)
    engine.start()
    waiter = Waiter()
    gate.clear()
    submit(engine, [1, 2, 3], max_tokens=50, sink=waiter)
    assert backend.wait_for_forward(1)
    # The first token leaves before the second forward returns: the gate never opens for that one.
    backend.gate = shut = threading.Event()
    gate.set()
    assert waiter.has_token.wait(10)
    shut.set()
    assert engine.stop(10)


def test_stop_ends_running_and_waiting_as_cancelled():
    gate = threading.Event()
    backend = ScriptedBackend(num_slots=1, gate=gate)
    engine = make_engine(backend)
    engine.start()
    answers = [submit(engine, [n, 2], max_tokens=100) for n in (1, 3, 4)]
    assert backend.wait_for_forward(1)
    assert engine.stop(0.01) is False, "the thread stands in a forward"
    assert engine.stats().seconds_since_step > 0
    with pytest.raises(EngineStopped):
        submit(engine, [1])
    gate.set()
    assert engine.stop(10)
    for answer in answers:
        assert answer.ended.reason is FinishReason.CANCELLED
        assert answer.ended.error.code == "engine_stopped"
    assert backend.is_closed
    assert engine.stats().num_running == engine.stats().num_waiting == engine.stats().num_free_slots == 0


def test_stop_of_an_engine_never_started():
    backend = ScriptedBackend()
    engine = make_engine(backend)
    answer = submit(engine, [1, 2])
    assert engine.stop(1)
    assert answer.ended.error.code == "engine_stopped"
    assert backend.is_closed


def test_dead_thread_ends_everybody_and_says_so():
    backend = ScriptedBackend(num_slots=2, crash_forwards={3})
    engine = make_engine(backend)
    waiters = [Waiter() for _ in range(4)]
    for n, waiter in enumerate(waiters):
        submit(engine, [n + 1, 2, 3], max_tokens=50, sink=waiter)
    engine.start()
    for waiter in waiters:
        assert waiter.has_ended.wait(10)
        assert waiter.ended.reason is FinishReason.ERROR
        assert waiter.ended.error.code == "engine_died"
    assert len(waiters[0].tokens) == 2, "what was sampled before the crash is delivered"
    assert engine.stop(10)
    stats = engine.stats()
    assert not stats.is_alive
    assert stats.error.code == "engine_died"
    assert stats.num_free_slots == 0
    assert backend.is_closed
    with pytest.raises(EngineStopped):
        submit(engine, [1])


def test_submissions_and_cancels_from_many_threads_all_end():
    engine = make_engine(ScriptedBackend(num_slots=3))
    engine.start()
    answers: list[list[Answer]] = [[] for _ in range(4)]

    def client(number: int) -> None:
        for n in range(25):
            answer = submit(engine, [number + 1, n + 1, 3], max_tokens=n % 7 + 1)
            answers[number].append(answer)
            if n % 3 == 0:
                engine.cancel(answer.key)

    threads = [threading.Thread(target=client, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert engine.drain(30)
    assert engine.stop(10)
    for number, mine in enumerate(answers):
        for n, answer in enumerate(mine):
            whole = alone([number + 1, n + 1, 3], max_tokens=n % 7 + 1)
            if answer.ended.reason is FinishReason.CANCELLED:
                assert answer.tokens == whole[: len(answer.tokens)]
            else:
                assert answer.tokens == whole
