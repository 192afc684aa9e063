"""Thousands of random submissions, cancels and failures: no slot leaks, no answer bends, nothing stays open."""

from __future__ import annotations

import random

import pytest

from inference.protocol import FinishReason
from inference.testing import ScriptedBackend
from tests.engine.driving import alone, make_engine, run, slot_contents, submit


@pytest.mark.parametrize("seed", range(4))
def test_no_slot_leaks_and_no_answer_bends_under_churn(seed):
    rng = random.Random(seed)
    failing = {n for n in range(1, 5000) if rng.random() < 0.01}
    backend = ScriptedBackend(num_slots=4, context_tokens=120, max_batch_tokens=24, fail_forwards=failing)
    engine = make_engine(backend, min_copy_tokens=rng.choice([1, 8, 64]), min_chunk_tokens=4)
    conversations: dict[str, list[int]] = {}
    asked, still_open = [], []
    for _ in range(1500):
        move = rng.random()
        if move < 0.25 and len(still_open) < 12:
            salt = rng.choice(["anna", "ben", ""])
            prompt = [7, 7, 7, *([8] * rng.randint(0, 20)), *(rng.randrange(1, 97) for _ in range(rng.randint(0, 30)))]
            if salt in conversations and rng.random() < 0.5:
                prompt = [*conversations[salt], 9, rng.randrange(1, 97)][:118]
            answer = submit(engine, prompt, salt=salt, max_tokens=rng.randint(1, 15), priority=rng.randint(0, 2))
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
    assert engine.stats().num_cached_tokens > 0


@pytest.mark.parametrize("seed", range(3))
def test_no_token_of_another_salt_is_ever_in_a_slot_read(seed):
    # Each salt speaks only its own tokens, so a foreign one in the KV of its forwards would be seen.
    rng = random.Random(seed)
    backend = ScriptedBackend(num_slots=3, max_batch_tokens=16, script=lambda history: history[0])
    engine = make_engine(backend, min_copy_tokens=1)
    for _ in range(60):
        voice = rng.randrange(1, 9)
        submit(engine, [voice] * rng.randint(1, 50), salt=str(voice), max_tokens=rng.randint(1, 10))
        for _ in range(rng.randint(0, 8)):
            engine.step()
            for slot in range(3):
                assert len(set(backend.tokens_in(slot))) <= 1
    run(engine)
