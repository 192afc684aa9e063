"""A pool that is too small and the memory behind it, over a real context: the same answers, whoever had to wait."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest

from inference import catalog
from inference.engine.engine import Ended, Engine, Output, Submission, Token
from inference.engine.sampling.plan import SamplerPlan
from inference.llama.loader import LoadedModel, load
from tests.model.conftest import small_config

pytestmark = pytest.mark.model

PROMPTS = [[5 + 7 * i + j for j in range(60)] for i in range(4)]


def answers(engine: Engine, prompts: list[list[int]], num: int) -> list[list[int]]:
    """Greedy answers of `num` tokens, all asked for at once; the engine is stepped by hand."""
    told: list[list[Output]] = [[] for _ in prompts]
    for i, prompt in enumerate(prompts):
        ids = np.array(prompt, np.int32)
        plan = SamplerPlan(temperature=0.0)
        engine.submit(Submission(uuid4(), ids, ids[:0], plan, num, str(i), 0, told[i].append))
    while any(not outputs or not isinstance(outputs[-1], Ended) for outputs in told):
        engine.step()
        engine.check_integrity()
    return [[o.id for o in outputs if isinstance(o, Token)] for outputs in told]


def engine_of(model: LoadedModel, **options: int) -> Engine:
    return Engine(model.backend, end_tokens=frozenset(), target_itl_ms=100.0, **options)


def test_full_pool_makes_some_wait_and_changes_no_answer(tiny_path: Path) -> None:
    entry = catalog.entry_of_path(tiny_path)
    # Over a q8_0 cache equality is exact (test_backend.py).
    roomy = load(entry, small_config(WORKER_KV_TYPE="q8_0"))
    engine = engine_of(roomy)
    expected = [answers(engine, [prompt], 400)[0] for prompt in PROMPTS]
    engine.stop(1.0)

    for host_cache_bytes in (0, 10_000_000):
        model = load(entry, small_config(WORKER_KV_TYPE="q8_0", WORKER_KV_TOKENS="1100"))
        assert (model.backend.form.unified, model.backend.pool_tokens, model.backend.context_tokens) == (
            True,
            1024,
            512,
        )
        assert any("1,024" in note for note in model.notes)
        engine = engine_of(model, host_cache_bytes=host_cache_bytes, min_host_tokens=32)
        assert answers(engine, PROMPTS, 400) == expected
        stats = engine.stats()
        assert stats.num_preemptions > 0
        assert stats.num_failed_forwards == 0
        assert (stats.num_host_restored_tokens > 0) == bool(host_cache_bytes)
        model.backend.check_integrity()
        engine.stop(1.0)


@pytest.mark.parametrize("unified", [True, False])
def test_saved_slot_goes_on_as_if_it_had_stayed(tiny_path: Path, unified: bool) -> None:
    config = small_config(WORKER_KV_TYPE="q8_0", WORKER_SLOTS="2")
    model = load(catalog.entry_of_path(tiny_path), config, unified=unified)
    engine = engine_of(model, host_cache_bytes=10_000_000, min_host_tokens=16)
    fresh = [answers(engine, [prompt], 20)[0] for prompt in PROMPTS]  # four conversations, two slots
    assert engine.stats().host_cache_bytes > 0
    assert engine.stats().num_host_restored_tokens == 0
    num_read = engine.stats().num_prefilled_tokens
    assert [answers(engine, [prompt], 20)[0] for prompt in PROMPTS] == fresh
    assert engine.stats().num_host_restored_tokens > 0
    assert engine.stats().num_prefilled_tokens - num_read < 60, "each prompt was still there but for its last token"
    model.backend.check_integrity()
    engine.stop(1.0)


def test_pool_as_large_as_all_contexts_is_none(tiny_path: Path) -> None:
    model = load(catalog.entry_of_path(tiny_path), small_config(WORKER_KV_TOKENS="4096"))
    assert (model.backend.form.unified, model.backend.pool_tokens) == (False, 8 * 512)
    model.backend.close()
    model = load(catalog.entry_of_path(tiny_path), small_config(WORKER_KV_TOKENS="512", WORKER_CONTEXT_TOKENS="1024"))
    assert (model.backend.pool_tokens, model.backend.context_tokens) == (512, 512)
    model.backend.close()
