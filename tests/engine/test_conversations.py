"""Next turns read only what is new, whether their conversation still has a slot, lies in host memory, or both."""

from __future__ import annotations

import random

import pytest

from inference.errors import EngineError
from inference.testing import ScriptedBackend
from tests.engine.driving import alone, make_engine, run, slot_contents, submit

SYSTEM = [90 + n % 7 for n in range(30)]


@pytest.mark.parametrize(("num_slots", "host_cache_bytes"), [(32, 0), (8, 100_000)], ids=["slots", "host memory"])
def test_history_of_many_conversations_of_many_turns_comes_from_the_cache(num_slots, host_cache_bytes):
    rng = random.Random(5)
    backend = ScriptedBackend(num_slots=num_slots, context_tokens=700, max_batch_tokens=128)
    engine = make_engine(backend, host_cache_bytes=host_cache_bytes, min_host_tokens=16, min_copy_tokens=8)
    histories: dict[str, list[int]] = {str(user): list(SYSTEM) for user in range(32)}
    num_history = num_cached = 0
    for _ in range(8):
        asked = {}
        for user in rng.sample(sorted(histories), 32):
            prompt = [*histories[user], *(rng.randrange(1, 90) for _ in range(30))]
            asked[user] = prompt, submit(engine, prompt, salt=user, num_shared=len(SYSTEM), max_tokens=20)
        run(engine)
        for user, (prompt, answer) in asked.items():
            if len(histories[user]) > len(SYSTEM):
                num_history += len(histories[user])
                num_cached += min(answer.ended.num_cached, len(histories[user]))
            histories[user] = [*prompt, *answer.tokens]
    assert num_cached >= 0.95 * num_history
    slot_contents(engine, backend)
    some = rng.choice(sorted(histories))
    assert asked[some][1].tokens == alone(asked[some][0], max_tokens=20, backend={"context_tokens": 700})
    assert (engine.stats().num_host_restored_tokens > 0) == bool(host_cache_bytes)
    assert engine.stats().host_cache_bytes <= host_cache_bytes


def test_refused_state_is_a_miss():
    backend = ScriptedBackend(num_slots=1, refuses_states=True)
    engine = make_engine(backend, host_cache_bytes=10_000, min_host_tokens=4)
    prompts = {salt: [n] * 30 for n, salt in enumerate(("anna", "ben"), start=1)}
    for salt in ("anna", "ben", "anna", "ben"):
        answer = submit(engine, prompts[salt], salt=salt, max_tokens=3)
        run(engine)
        assert answer.tokens == alone(prompts[salt], max_tokens=3)
        assert answer.ended.num_cached == 0
        slot_contents(engine, backend)
    assert engine.stats().num_host_restored_tokens == 0


def test_restored_prefix_is_cut_to_what_is_asked_for():
    backend = ScriptedBackend(num_slots=1)
    engine = make_engine(backend, host_cache_bytes=10_000, min_host_tokens=4)
    first = submit(engine, range(1, 41), max_tokens=20)
    run(engine)
    submit(engine, [80, 81, 82], max_tokens=2)
    run(engine)
    edited = [*range(1, 31), 70, 71]
    answer = submit(engine, edited, max_tokens=10)
    run(engine)
    assert answer.ended.num_cached == 30
    assert answer.tokens == alone(edited, max_tokens=10)
    again = submit(engine, [*range(1, 41), *first.tokens[:10], 75], max_tokens=5)  # the edit took nothing from it
    run(engine)
    assert again.ended.num_cached == 50
    slot_contents(engine, backend)


def test_copy_to_host_memory_that_fails_loses_only_the_copy():
    class Full(ScriptedBackend):
        def save(self, slot):
            raise EngineError("no memory")

    backend = Full(num_slots=1)
    engine = make_engine(backend, host_cache_bytes=10_000, min_host_tokens=4)
    for n in (1, 2, 1):
        answer = submit(engine, [n] * 30, max_tokens=3)
        run(engine)
        assert answer.tokens == alone([n] * 30, max_tokens=3)
    assert engine.stats().host_cache_bytes == 0
    assert engine.stats().num_evictions == 2
