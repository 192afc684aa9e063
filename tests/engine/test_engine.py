"""Answers do not depend on neighbours, the cache, interruptions or chunking; limits and cancels do what they say."""

from __future__ import annotations

import random

import pytest

from inference.engine.engine import Engine, Reading
from inference.engine.sampling.plan import SamplerPlan
from inference.errors import ConfigError, InvalidRequest, PromptTooLong
from inference.messages.generation import FinishReason
from inference.testing import ScriptedBackend
from tests.engine.driving import GREEDY, Answer, alone, make_engine, run, slot_contents, submit


def random_plan(rng: random.Random) -> SamplerPlan:
    if rng.random() < 0.3:
        return GREEDY
    return SamplerPlan(
        temperature=rng.choice([0.3, 0.8, 1.0, 2.0]),
        top_k=rng.choice([0, 1, 5, 40]),
        top_p=rng.choice([1.0, 0.9, 0.5]),
        min_p=rng.choice([0.0, 0.05, 0.3]),
        repetition_penalty=rng.choice([1.0, 1.3]),
        presence_penalty=rng.choice([0.0, 0.7]),
        frequency_penalty=rng.choice([0.0, 0.2]),
        seed=rng.randrange(2**64),
    )


def random_prompt(rng: random.Random, longest: int = 90) -> list[int]:
    return [rng.randrange(1, 97) for _ in range(rng.randint(1, longest))]


@pytest.mark.parametrize("seed", range(25))
def test_batched_equals_alone(seed):
    rng = random.Random(seed)
    backend = ScriptedBackend(num_slots=rng.choice([1, 2, 5, 8]), max_batch_tokens=rng.choice([9, 16, 64]))
    engine = make_engine(backend, min_chunk_tokens=rng.choice([1, 4, 16]), sampler_threads=rng.choice([1, 2]))
    asked = []
    for _ in range(12):
        prompt, options = random_prompt(rng), {"plan": random_plan(rng), "max_tokens": rng.randint(1, 20)}
        asked.append((submit(engine, prompt, **options), prompt, options))
        for _ in range(rng.randint(0, 6)):
            engine.step()
    run(engine)
    for answer, prompt, options in asked:
        assert answer.tokens == alone(prompt, **options)
        assert answer.ended is not None
    slot_contents(engine, backend)


def test_cached_prefix_equals_fresh_and_next_turn_prefills_only_what_is_new():
    backend = ScriptedBackend()
    engine = make_engine(backend)
    first_turn = list(range(1, 41))
    first = submit(engine, first_turn, max_tokens=10)
    run(engine)
    num_before = engine.stats().num_prefilled_tokens
    assert num_before == 40

    next_turn = first_turn + first.tokens + [50, 51, 52]
    second = submit(engine, next_turn, max_tokens=10)
    run(engine)

    # The answer's last token was sampled but never evaluated: it is new too.
    num_kept = 40 + len(first.tokens) - 1
    assert engine.stats().num_prefilled_tokens - num_before == len(next_turn) - num_kept
    assert second.ended.num_cached == num_kept
    assert second.tokens == alone(next_turn, max_tokens=10)


def test_whole_prompt_cached_still_evaluates_one_token():
    engine = make_engine(ScriptedBackend())
    prompt = list(range(1, 31))
    first = submit(engine, prompt)
    run(engine)
    again = submit(engine, prompt)
    run(engine)
    assert again.tokens == first.tokens
    assert again.ended.num_cached == 29
    assert again.readings == [Reading(29, 30, 29), Reading(30, 30, 29)]


def test_cache_is_apart_between_salts():
    engine = make_engine(ScriptedBackend(), min_copy_tokens=1)
    prompt = list(range(1, 31))
    for salt, num_cached in [("anna", 0), ("ben", 0), ("anna", 29), ("ben", 29), ("", 0)]:
        answer = submit(engine, prompt, salt=salt)
        run(engine)
        assert answer.ended.num_cached == num_cached
        assert answer.tokens == alone(prompt)


def test_shared_beginning_is_anybodys_and_the_rest_is_not():
    engine = make_engine(ScriptedBackend(), min_copy_tokens=1)
    system = list(range(1, 21))
    for salt, rest, num_cached in [
        ("anna", [30, 31, 32], 0),
        ("ben", [30, 31, 33], 20),  # what anna said is not ben's to find, though it is the same
        ("anna", [30, 31, 34], 22),
        ("ben", [30, 31, 35], 22),
        ("carl", [], 19),
    ]:
        answer = submit(engine, [*system, *rest], salt=salt, num_shared=20)
        run(engine)
        assert answer.ended.num_cached == num_cached, salt
        assert answer.tokens == alone([*system, *rest])


def test_shared_prefix_of_a_running_sequence_is_copied():
    backend = ScriptedBackend(num_slots=3)
    engine = make_engine(backend, min_copy_tokens=8)
    system = list(range(1, 21))
    running = submit(engine, [*system, 30, 31], max_tokens=50)
    engine.step()
    other = submit(engine, [*system, 40, 41], max_tokens=5)
    run(engine)
    assert backend.num_copied_tokens == 20
    assert other.ended.num_cached == 20
    assert other.tokens == alone([*system, 40, 41], max_tokens=5)
    assert running.tokens == alone([*system, 30, 31], max_tokens=50)


def test_two_sequences_of_one_conversation_have_a_slot_each():
    backend = ScriptedBackend()
    engine = make_engine(backend, min_copy_tokens=1)
    prompt = list(range(1, 31))
    submit(engine, prompt)
    run(engine)
    pair = [submit(engine, prompt, max_tokens=20), submit(engine, prompt, max_tokens=20)]
    engine.step()
    held = [s.holder for s in engine._loop._admission._pool.all if s.holder]
    assert sorted(held) == sorted(a.key for a in pair)
    run(engine)
    assert pair[0].tokens == pair[1].tokens == alone(prompt, max_tokens=20)


def test_context_full_ends_with_length():
    engine = make_engine(ScriptedBackend(context_tokens=24))
    answer = submit(engine, range(1, 21), max_tokens=1000)
    run(engine)
    assert len(answer.tokens) == 4
    assert (answer.ended.reason, answer.ended.cut) == (FinishReason.LENGTH, "context")


@pytest.mark.parametrize("num_prompt", [1, 22, 23])
def test_every_position_of_the_context_is_usable_and_none_beyond(num_prompt):
    engine = make_engine(ScriptedBackend(num_slots=2, context_tokens=24, script=lambda history: 5))
    answer = submit(engine, [5] * num_prompt, max_tokens=1000)
    run(engine)
    assert len(answer.tokens) == 24 - num_prompt


def test_max_tokens_ends_with_length():
    engine = make_engine(ScriptedBackend())
    answer = submit(engine, [1, 2, 3], max_tokens=5)
    run(engine)
    assert len(answer.tokens) == 5
    assert (answer.ended.reason, answer.ended.cut) == (FinishReason.LENGTH, "max_tokens")


def test_end_token_is_not_delivered():
    engine = make_engine(ScriptedBackend(answers={(1, 2, 3): [7, 8, 9]}))
    answer = submit(engine, [1, 2, 3], max_tokens=50)
    run(engine)
    assert answer.tokens == [7, 8, 9]
    assert answer.ended.reason is FinishReason.STOP
    assert answer.ended.error is None
    assert answer.ended.cut == ""


@pytest.mark.parametrize("seed", range(12))
def test_continued_attempt_goes_on_as_if_never_interrupted(seed):
    rng = random.Random(seed)
    prompt, plan = random_prompt(rng), random_plan(rng)
    whole = alone(prompt, plan=plan, max_tokens=30)
    for cut in {0, 1, len(whole) // 2, len(whole)}:
        engine = make_engine(ScriptedBackend())
        answer = submit(engine, prompt, plan=plan, generated=whole[:cut], max_tokens=30)
        run(engine)
        assert whole[:cut] + answer.tokens == whole


def test_attempt_that_had_reached_max_tokens_ends_at_once():
    engine = make_engine(ScriptedBackend())
    answer = submit(engine, [1, 2, 3], generated=[4, 5], max_tokens=2)
    run(engine)
    assert answer.tokens == []
    assert answer.ended.reason is FinishReason.LENGTH
    assert engine.stats().num_steps == 0


def test_readings_rise_to_the_whole_prompt_before_the_first_token():
    engine = make_engine(ScriptedBackend(max_batch_tokens=16))
    answer = submit(engine, range(1, 51))
    run(engine)
    done = [r.num_done for r in answer.readings]
    assert done == [0, 16, 32, 48, 50]
    assert answer.outputs[: len(done)] == answer.readings


def test_cancel_in_waiting_touches_nobody():
    engine = make_engine(ScriptedBackend(num_slots=1))
    running, waiting, third = (submit(engine, [n, 2, 3], max_tokens=6) for n in (1, 4, 5))
    engine.step()
    engine.cancel(waiting.key)
    engine.step()
    assert waiting.ended.reason is FinishReason.CANCELLED
    assert waiting.tokens == []
    run(engine)
    assert running.tokens == alone([1, 2, 3], max_tokens=6)
    assert third.tokens == alone([5, 2, 3], max_tokens=6)


def test_cancel_before_the_engine_saw_the_submission():
    engine = make_engine(ScriptedBackend())
    answer = submit(engine, [1, 2, 3])
    engine.cancel(answer.key)
    run(engine)
    assert answer.ended.reason is FinishReason.CANCELLED
    assert engine.stats().num_steps == 0


@pytest.mark.parametrize("num_steps", [1, 2, 3, 5, 8], ids=lambda n: f"after {n} steps")
def test_cancel_frees_slot_before_next_step(num_steps):
    # 40 tokens in chunks of 16: the first steps are prefill, the later ones decode.
    backend = ScriptedBackend(num_slots=1, max_batch_tokens=16)
    engine = make_engine(backend)
    cancelled = submit(engine, range(1, 41), max_tokens=100)
    for _ in range(num_steps):
        engine.step()
    engine.cancel(cancelled.key)
    follower = submit(engine, [60, 61, 62], max_tokens=3)
    engine.step()
    assert backend.pieces[-1][0].tokens == (60, 61, 62)
    assert cancelled.ended.reason is FinishReason.CANCELLED
    run(engine)
    assert follower.tokens == alone([60, 61, 62], max_tokens=3)


def test_cancelled_prefill_leaves_exactly_what_was_decoded_as_cache():
    backend = ScriptedBackend(max_batch_tokens=16)
    engine = make_engine(backend)
    prompt = list(range(1, 61))
    cancelled = submit(engine, prompt)
    engine.step()
    engine.step()
    engine.cancel(cancelled.key)
    engine.step()
    slot_contents(engine, backend)
    again = submit(engine, prompt)
    run(engine)
    assert again.ended.num_cached == 32
    assert again.tokens == alone(prompt)


def test_cancel_of_unknown_or_ended_is_nothing():
    engine = make_engine(ScriptedBackend())
    answer = submit(engine, [1, 2, 3], max_tokens=2)
    run(engine)
    engine.cancel(answer.key)
    engine.cancel(Answer(answer.key).key)
    assert engine.step() is False
    assert len([o for o in answer.outputs if o is answer.ended]) == 1


def test_priority_goes_first_and_waiting_makes_urgent():
    now = [0.0]
    engine = make_engine(ScriptedBackend(num_slots=1), clock=lambda: now[0])
    order: list[str] = []

    def ask(name: str, priority: int) -> None:
        submit(engine, [len(name), 2], max_tokens=1, priority=priority, sink=lambda output: order.append(name))

    ask("late", 3)
    now[0] = 5.0
    ask("person", 0)
    ask("person too", 0)
    now[0] = 31.0
    ask("newcomer", 0)  # "late" waits since 31 seconds: by now more urgent than who just came
    run(engine)
    assert list(dict.fromkeys(order)) == ["person", "person too", "late", "newcomer"]


@pytest.mark.parametrize(
    ("prompt", "options", "error"),
    [
        ([], {}, InvalidRequest),
        ([97], {}, InvalidRequest),
        ([-1], {}, InvalidRequest),
        ([1], {"generated": [200]}, InvalidRequest),
        ([1], {"max_tokens": 0}, InvalidRequest),
        ([1] * 256, {}, PromptTooLong),
        ([1] * 200, {"generated": [1] * 57}, InvalidRequest),
        ([1, 2], {"num_shared": 3}, InvalidRequest),
        ([1, 2], {"num_shared": -1}, InvalidRequest),
        ([1], {"plan": SamplerPlan(logit_bias=((97, 1.0),))}, InvalidRequest),
    ],
)
def test_impossible_submission_is_refused_at_once(prompt, options, error):
    engine = make_engine(ScriptedBackend())
    with pytest.raises(error):
        submit(engine, prompt, **options)
    assert engine.stats().num_waiting == 0


def test_key_in_work_is_refused_and_usable_again_afterwards():
    engine = make_engine(ScriptedBackend())
    first = submit(engine, [1, 2], max_tokens=2)
    with pytest.raises(InvalidRequest):
        submit(engine, [1, 2], key=first.key)
    run(engine)
    again = submit(engine, [1, 2], key=first.key, max_tokens=2)
    run(engine)
    assert again.tokens == first.tokens


def test_batch_without_room_beside_the_slots_stops_the_start():
    with pytest.raises(ConfigError, match="WORKER_BATCH_TOKENS"):
        Engine(ScriptedBackend(num_slots=8, max_batch_tokens=8), end_tokens=frozenset(), target_itl_ms=100)


def test_stats_count_slots_tokens_and_time():
    now = [0.0]

    def clock() -> float:
        now[0] += 0.001
        return now[0]

    engine = make_engine(ScriptedBackend(num_slots=2), clock=clock)
    for n in range(3):
        submit(engine, [n + 1, 2, 3], max_tokens=4)
    assert (engine.stats().num_waiting, engine.stats().num_free_slots) == (3, 0)
    engine.step()
    stats = engine.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_free_slots) == (2, 1, 0)
    assert stats.seconds_since_step > 0
    run(engine)
    stats = engine.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_free_slots) == (0, 0, 2)
    assert stats.seconds_since_step == 0
    assert stats.num_decoded_tokens == 12
    assert stats.num_prefilled_tokens == 9
    assert 0 < stats.host_seconds_per_step < stats.last_step_seconds
