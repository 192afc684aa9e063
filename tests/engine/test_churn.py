"""Thousands of random submissions, cancels and failures, with too few slots and too little memory: no slot leaks, no
answer bends, nobody reads another's tokens, nothing stays open."""

from __future__ import annotations

import random

import pytest

from inference.messages.generation import FinishReason
from inference.testing import ScriptedBackend
from tests.engine.driving import alone, make_engine, run, slot_contents, submit


@pytest.mark.parametrize("seed", range(8))
def test_no_slot_leaks_and_no_answer_bends_under_churn(seed):
    rng = random.Random(seed)
    failing = {n for n in range(1, 3000) if rng.random() < 0.01}
    backend = ScriptedBackend(
        num_slots=4,
        context_tokens=120,
        pool_tokens=[480, 300, 200, 120][seed % 4],
        max_batch_tokens=24,
        fail_forwards=failing,
        refuses_states=seed == 7,
        is_async=seed % 2 == 1,
    )
    engine = make_engine(
        backend,
        min_copy_tokens=rng.choice([1, 8, 64]),
        min_chunk_tokens=4,
        min_host_tokens=rng.choice([4, 30]),
        host_cache_bytes=[0, 3000, 1000, 20_000][seed // 2],
    )
    conversations: dict[str, list[int]] = {}
    asked, still_open = [], []
    for _ in range(800):
        move = rng.random()
        if move < 0.25 and len(still_open) < 12:
            salt = rng.choice(["anna", "ben", ""])
            num_shared = rng.choice([0, 3, 3, 3])
            prompt = [7, 7, 7, *([8] * rng.randint(0, 20)), *(rng.randrange(1, 97) for _ in range(rng.randint(0, 30)))]
            if salt in conversations and rng.random() < 0.5:
                prompt = [*conversations[salt], 9, rng.randrange(1, 97)][:118]
            answer = submit(
                engine,
                prompt,
                salt=salt,
                max_tokens=rng.randint(1, 15),
                priority=rng.randint(0, 2),
                num_shared=num_shared,
            )
            asked.append((answer, prompt, engine._open[answer.key].max_tokens, salt))
            still_open.append(asked[-1])
        elif move < 0.32 and still_open:
            engine.cancel(rng.choice(still_open)[0].key)
        else:
            engine.step()
            engine.check_integrity()
            slot_contents(engine, backend)
        for entry in [e for e in still_open if e[0].ended]:
            still_open.remove(entry)
            conversations[entry[3]] = [*entry[1], *entry[0].tokens]
    run(engine)
    slot_contents(engine, backend)

    assert engine.stats().num_free_slots == 4
    assert engine.stats().num_failed_forwards > 0
    num_whole = 0
    for answer, prompt, max_tokens, _ in asked:
        expected = alone(prompt, max_tokens=max_tokens, backend={"context_tokens": 120})
        if answer.ended.reason in (FinishReason.STOP, FinishReason.LENGTH):
            assert answer.tokens == expected
            num_whole += 1
        else:
            assert answer.tokens == expected[: len(answer.tokens)]
    assert num_whole > len(asked) / 2
    stats = engine.stats()
    assert stats.num_cached_tokens > 0
    assert stats.num_preemptions > 0
    assert stats.num_evictions > 0
    assert (stats.num_host_restored_tokens > 0) == (seed // 2 > 0 and seed != 7)
    assert backend.num_overfull == 0


@pytest.mark.parametrize("seed", range(6))
def test_no_token_of_another_salt_is_ever_in_a_slot_read(seed):
    # Each salt speaks only its own tokens after what all share, so a foreign one in its slot's KV would be seen.
    rng = random.Random(seed)
    backend = ScriptedBackend(
        num_slots=3,
        max_batch_tokens=16,
        pool_tokens=rng.choice([256, 400, 768]),
        script=lambda history: history[-1],
        refuses_states=seed == 5,
    )
    engine = make_engine(backend, min_copy_tokens=1, min_host_tokens=rng.choice([4, 20]), host_cache_bytes=5000)
    shared = [90, 91, 92, 93]
    for _ in range(120):
        voice = rng.randrange(1, 9)
        said = [voice] * rng.randint(1, 50)
        priority = rng.choice([0, 0, 1])
        submit(
            engine, [*shared, *said], salt=str(voice), num_shared=4, max_tokens=rng.randint(1, 10), priority=priority
        )
        for _ in range(rng.randint(0, 8)):
            engine.step()
            engine.check_integrity()
            slot_contents(engine, backend)
            for slot in engine._loop._admission._pool.all:
                assert set(backend.tokens_in(slot.index)) <= {*shared, int(slot.salt or 0)}
            for entry in engine._loop._admission._host.entries:
                assert set(entry.state.view("int32").tolist()) <= {*shared, int(entry.salt)}
    run(engine)
    assert engine.stats().num_cached_tokens > 0
    assert (engine.stats().num_host_restored_tokens > 0) == (seed != 5)
