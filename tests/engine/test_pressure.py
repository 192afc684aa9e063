"""When slots or KV memory are too few, caches go before answers, and whoever has to wait goes on as if it had not."""

from __future__ import annotations

import random

import pytest

from inference.engine.sampling.plan import SamplerPlan
from inference.engine.sequence import SequenceStatus
from inference.errors import PromptTooLong
from inference.messages.generation import FinishReason
from inference.testing import ScriptedBackend
from tests.engine.driving import GREEDY, alone, make_engine, run, slot_contents, submit

DRAWN = SamplerPlan(temperature=1.0, top_k=20, repetition_penalty=1.2, presence_penalty=0.5, seed=7)


def running(engine) -> set:
    return {s.key for s in engine._loop._scheduler.running}


def test_person_does_not_wait_for_background_work():
    now = [0.0]
    engine = make_engine(ScriptedBackend(num_slots=2), clock=lambda: now[0])
    titles = [submit(engine, [n, 2, 3], max_tokens=40, priority=2, plan=DRAWN) for n in (1, 4)]
    for _ in range(5):
        engine.step()
    now[0] = 5.0
    person = submit(engine, [7, 8, 9], max_tokens=5)
    engine.step()
    assert person.tokens or person.readings, "seated in the very next step"
    assert running(engine) == {titles[0].key, person.key}, "the newer of the two had to go"
    assert engine.stats().num_preemptions == 1
    run(engine)
    assert person.tokens == alone([7, 8, 9], max_tokens=5)
    assert [t.tokens for t in titles] == [alone([n, 2, 3], max_tokens=40, plan=DRAWN) for n in (1, 4)]


def test_background_work_that_has_waited_long_enough_may_finish():
    now = [0.0]
    engine = make_engine(ScriptedBackend(num_slots=1), clock=lambda: now[0])
    title = submit(engine, [1, 2, 3], max_tokens=40, priority=2)
    engine.step()
    now[0] = 21.0
    person = submit(engine, [7, 8, 9])
    engine.step()
    assert running(engine) == {title.key}
    run(engine)
    assert title.tokens == alone([1, 2, 3], max_tokens=40)
    assert person.tokens == alone([7, 8, 9])


def test_no_person_and_no_background_work_displaces_its_equal():
    engine = make_engine(ScriptedBackend(num_slots=2))
    first = submit(engine, [1, 2], max_tokens=20), submit(engine, [3, 4], max_tokens=20, priority=1)
    engine.step()
    title = submit(engine, [5, 6], priority=1)
    engine.step()
    assert running(engine) == {a.key for a in first}
    persons = [submit(engine, [n, 9], max_tokens=20) for n in (7, 8)]
    engine.step()
    assert running(engine) == {first[0].key, persons[0].key}
    run(engine)
    assert engine.stats().num_preemptions == 1
    assert title.tokens == alone([5, 6])


@pytest.mark.parametrize("num_steps", range(1, 12))
@pytest.mark.parametrize("host_cache_bytes", [0, 10_000])
def test_answer_is_the_same_wherever_it_was_interrupted(num_steps, host_cache_bytes):
    backend = ScriptedBackend(num_slots=1, max_batch_tokens=8)
    engine = make_engine(backend, host_cache_bytes=host_cache_bytes, min_host_tokens=4, clock=lambda: 0.0)
    prompt = list(range(1, 31))
    title = submit(engine, prompt, max_tokens=20, priority=1, plan=DRAWN)
    for _ in range(num_steps):
        engine.step()
    person = submit(engine, [60, 61], max_tokens=2)
    run(engine)
    assert engine.stats().num_preemptions == 1
    assert title.tokens == alone(prompt, max_tokens=20, plan=DRAWN)
    assert title.ended.num_cached == 0, "its own tokens are no hit"
    assert person.tokens == alone([60, 61], max_tokens=2)
    assert (engine.stats().num_host_restored_tokens > 0) == bool(host_cache_bytes)
    slot_contents(engine, backend)


def test_preempted_sequence_can_be_cancelled_while_it_waits():
    engine = make_engine(ScriptedBackend(num_slots=1), clock=lambda: 0.0)
    title = submit(engine, [1, 2, 3], max_tokens=40, priority=1)
    engine.step()
    person = submit(engine, [7, 8, 9])
    engine.step()
    engine.cancel(title.key)
    run(engine)
    assert title.ended.reason is FinishReason.CANCELLED
    assert person.tokens == alone([7, 8, 9])


def test_cached_slots_go_before_any_answer_and_the_least_recent_first():
    backend = ScriptedBackend(num_slots=4, pool_tokens=120)
    engine = make_engine(backend, min_copy_tokens=1)
    for n in (1, 2, 3):
        submit(engine, [n] * 30, max_tokens=1)
        run(engine)
    assert engine.stats().num_held_tokens == 90
    answer = submit(engine, [9] * 50, max_tokens=1)
    run(engine)
    assert answer.tokens == alone([9] * 50, max_tokens=1)
    assert [len(backend.tokens_in(slot)) for slot in range(4)] == [0, 30, 30, 50]
    stats = engine.stats()
    assert (stats.num_evictions, stats.num_preemptions, stats.pool_tokens) == (1, 0, 120)
    slot_contents(engine, backend)


def test_nobody_is_seated_whose_prompt_and_first_stretch_do_not_fit():
    backend = ScriptedBackend(num_slots=4, pool_tokens=200)
    engine = make_engine(backend)
    answers = [submit(engine, [n] * 60, max_tokens=10) for n in (1, 2, 3)]
    engine.step()
    assert running(engine) == {answers[0].key, answers[1].key}, "3 x 70 are more than 200"
    run(engine)
    assert engine.stats().num_preemptions == 0
    assert [a.tokens for a in answers] == [alone([n] * 60, max_tokens=10) for n in (1, 2, 3)]


@pytest.mark.parametrize("host_cache_bytes", [0, 100_000])
def test_full_pool_preempts_the_newest_and_fails_nobody(host_cache_bytes):
    # Reserved are 256 of each answer; what they need beyond is more than there is.
    backend = ScriptedBackend(num_slots=4, context_tokens=1200, pool_tokens=1400, script=lambda h: len(h) % 90 + 1)
    engine = make_engine(backend, host_cache_bytes=host_cache_bytes, min_host_tokens=64)
    options = {"max_tokens": 900}
    answers = [submit(engine, [n] * 60, **options) for n in (1, 2, 3)]
    for _ in range(20_000):
        if not engine.step():
            break
        engine.check_integrity()
        assert answers[0].key not in {s.key for s in engine._loop._scheduler.waiting}, "the eldest is never the victim"
    assert engine.stats().num_preemptions >= 2
    assert backend.num_overfull == 0
    expected = [
        alone([n] * 60, backend={"context_tokens": 1200, "script": backend.script}, **options) for n in (1, 2, 3)
    ]
    assert [a.tokens for a in answers] == expected
    assert (engine.stats().num_host_restored_tokens > 0) == bool(host_cache_bytes)
    slot_contents(engine, backend)


def test_least_urgent_is_preempted_before_the_newest():
    backend = ScriptedBackend(num_slots=2, context_tokens=700, pool_tokens=700, script=lambda h: 5)
    engine = make_engine(backend)
    title = submit(engine, [1] * 10, max_tokens=600, priority=1)
    engine.step()
    person = submit(engine, [2] * 10, max_tokens=600)
    while not engine.stats().num_preemptions:
        assert engine.step()
    assert running(engine) == {person.key}
    run(engine)
    assert len(title.tokens) == len(person.tokens) == 600


def test_lone_answer_may_fill_the_whole_pool_and_ends_there():
    backend = ScriptedBackend(num_slots=2, context_tokens=256, pool_tokens=100, script=lambda h: 5)
    engine = make_engine(backend)
    answer = submit(engine, [1] * 40, max_tokens=1000)
    run(engine)
    assert len(answer.tokens) == 60
    assert (answer.ended.reason, answer.ended.cut) == (FinishReason.LENGTH, "context")
    with pytest.raises(PromptTooLong) as refused:
        submit(engine, [1] * 100)
    assert refused.value.facts["limit_tokens"] == 99
    assert backend.num_overfull == 0


@pytest.mark.parametrize("seed", range(6))
def test_greedy_answers_in_a_full_pool_equal_those_alone(seed):
    rng = random.Random(seed)
    backend = ScriptedBackend(num_slots=6, context_tokens=200, pool_tokens=rng.choice([200, 260, 500]))
    engine = make_engine(backend, min_copy_tokens=rng.choice([1, 16]), min_host_tokens=8, host_cache_bytes=4000)
    asked = []
    for _ in range(20):
        prompt = [rng.randrange(1, 97) for _ in range(rng.randint(1, 80))]
        options = {"max_tokens": rng.randint(1, 150), "plan": rng.choice([GREEDY, DRAWN])}
        asked.append((submit(engine, prompt, **options), prompt, options))
    run(engine)
    assert backend.num_overfull == 0
    for answer, prompt, options in asked:
        assert answer.tokens == alone(prompt, backend={"context_tokens": 200}, **options)
    assert {s.status for s in engine._loop._scheduler.running} == set[SequenceStatus]()
