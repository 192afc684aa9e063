"""LlamaBackend over a real context: batching, KV memory, refusals before the library would end the process."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest

from inference import catalog
from inference.engine.batch import Batch
from inference.engine.engine import Ended, Engine, Output, Submission, Token
from inference.engine.sampling.plan import SamplerPlan
from inference.errors import EngineError
from inference.llama.context import LlamaBackend
from inference.llama.loader import LoadedModel, load
from inference.prompt.builder import PromptBuilder
from inference.prompt.tokenizer import Tokenizer
from tests.model.conftest import small_config
from tests.model.test_prompts import ask

pytestmark = pytest.mark.model

# Equality is exact over a q8_0 cache. Over f16 llama.cpp's CPU flash attention takes other paths (tiled from 64 tokens
# a batch on) whose logits differ by up to 0.8 for SmolLM2, so there a neighbour can turn a near tie.
PROMPTS = [[5 + 7 * i + j for j in range(3 + 2 * i)] for i in range(8)]


def greedy(backend: LlamaBackend, prompts: dict[int, Sequence[int]], num: int) -> dict[int, list[int]]:
    """Greedy answers of `num` tokens for prompts by slot, decoded in one running batch; slots are emptied after."""
    batch = Batch(backend.max_batch_tokens)
    answers: dict[int, list[int]] = {slot: [] for slot in prompts}
    upcoming = {slot: np.array(tokens, np.int32) for slot, tokens in prompts.items()}
    for _ in range(num):
        batch.clear()
        for slot, tokens in upcoming.items():
            batch.add(slot, tokens, backend.length(slot), wants_logits=True)
        backend.forward(batch)
        for (slot, answer), best in zip(answers.items(), backend.logits().argmax(axis=1)):
            answer.append(int(best))
            upcoming[slot] = np.array([best], np.int32)
    backend.check_integrity()
    for slot in prompts:
        backend.remove_range(slot, 0)
    return answers


@pytest.fixture(scope="module", params=["unified", "streams"])
def backend(request: pytest.FixtureRequest, tiny_path: Path) -> Iterator[LlamaBackend]:
    config = small_config(WORKER_KV_TYPE="q8_0")
    model = load(catalog.entry_of_path(tiny_path), config, unified=request.param == "unified")
    yield model.backend
    model.backend.close()


def test_loads_warm_with_a_card(tiny: LoadedModel) -> None:
    assert tiny.card.architecture == "smollm3"
    assert tiny.card.quantization == "Q4_K_M"
    assert tiny.card.thinking
    assert tiny.card.context_tokens == tiny.kit.context_tokens == tiny.backend.context_tokens == 512
    assert {tiny.kit.tokens[i] for i in tiny.end_tokens} == {"<|im_end|>", "<|end_of_text|>"}
    assert tiny.device.startswith("CPU")
    assert any("CPU" in note for note in tiny.degradations)
    assert all(tiny.backend.length(slot) == 0 for slot in range(tiny.backend.num_slots))


def test_a_batch_of_eight_answers_as_each_alone(backend: LlamaBackend) -> None:
    together = greedy(backend, dict(enumerate(PROMPTS)), 12)
    for slot, prompt in enumerate(PROMPTS):
        assert greedy(backend, {slot: prompt}, 12)[slot] == together[slot], slot
    assert len({tuple(answer) for answer in together.values()}) > 1


def test_prefill_in_chunks_answers_as_in_one(backend: LlamaBackend) -> None:
    prompt = np.arange(10, 110, dtype=np.int32)
    whole = greedy(backend, {0: prompt}, 6)[0]
    batch = Batch(64)
    for start in range(0, 99, 11):
        batch.clear()
        batch.add(0, prompt[start : start + 11], start, wants_logits=False)
        backend.forward(batch)
        assert backend.logits().shape == (0, backend.vocab_size)
    assert greedy(backend, {0: prompt[99:]}, 6)[0] == whole


def test_logits_come_in_batch_order_one_row_per_request_for_them(backend: LlamaBackend) -> None:
    def rows(order: Sequence[int]) -> np.ndarray:
        batch = Batch(64)
        for slot in order:
            batch.add(slot, np.array(PROMPTS[slot], np.int32), 0, wants_logits=slot != 2)
        backend.forward(batch)
        out = backend.logits().copy()
        for slot in order:
            backend.remove_range(slot, 0)
        return out

    forth, back = rows([0, 1, 2, 3]), rows([3, 2, 1, 0])
    assert forth.shape == (3, backend.vocab_size)
    assert forth.argmax(axis=1).tolist() == back.argmax(axis=1).tolist()[::-1]
    np.testing.assert_allclose(forth, back[::-1], atol=1e-4)


def test_a_removed_range_is_forgotten_and_the_slot_usable_again(backend: LlamaBackend) -> None:
    fresh = greedy(backend, {4: PROMPTS[4]}, 8)[4]
    greedy(backend, {4: PROMPTS[7]}, 5)
    assert greedy(backend, {4: PROMPTS[4]}, 8)[4] == fresh
    batch = Batch(64)
    batch.add(4, np.array([*PROMPTS[4][:-1], 200, 201, 202], np.int32), 0, wants_logits=False)
    backend.forward(batch)
    backend.remove_range(4, len(PROMPTS[4]) - 1)
    assert greedy(backend, {4: PROMPTS[4][-1:]}, 8)[4] == fresh


def test_a_copied_prefix_answers_as_a_fresh_one(backend: LlamaBackend) -> None:
    prompt = PROMPTS[7]
    fresh = greedy(backend, {1: prompt}, 8)[1]
    batch = Batch(64)
    batch.add(0, np.array([*prompt[:-1], 300, 301], np.int32), 0, wants_logits=False)
    backend.forward(batch)
    backend.copy_prefix(0, 1, len(prompt) - 1)
    backend.remove_range(0, 0)
    assert backend.length(1) == len(prompt) - 1
    assert greedy(backend, {1: prompt[-1:]}, 8)[1] == fresh


def test_a_saved_slot_answers_as_a_fresh_one_wherever_it_is_restored(backend: LlamaBackend) -> None:
    prompt = PROMPTS[7]
    fresh = greedy(backend, {1: prompt}, 8)[1]
    batch = Batch(64)
    batch.add(0, np.array(prompt[:-1], np.int32), 0, wants_logits=False)
    backend.forward(batch)
    state = backend.save(0)
    backend.remove_range(0, 0)
    greedy(backend, dict(enumerate(PROMPTS)), 3)  # whatever else the memory held meanwhile
    for slot in (0, 5):
        assert backend.restore(slot, state)
        assert backend.length(slot) == len(prompt) - 1
        backend.check_integrity()
        assert greedy(backend, {slot: prompt[-1:]}, 8)[slot] == fresh


def test_a_state_that_is_none_is_refused_and_the_slot_is_empty(backend: LlamaBackend) -> None:
    backend.forward(_batch(slot=2))
    state = backend.save(2)
    backend.remove_range(2, 0)
    assert not backend.restore(2, state[: len(state) // 2])
    assert backend.length(2) == 0
    backend.check_integrity()
    assert len(greedy(backend, {2: PROMPTS[2]}, 2)[2]) == 2


def _batch(slot: int = 0, tokens: Sequence[int] = (5, 6), position: int = 0) -> Batch:
    batch = Batch(1024)
    batch.add(slot, np.array(tokens, np.int32), position, wants_logits=True)
    return batch


@pytest.mark.parametrize(
    "bad",
    [
        Batch(8),
        _batch(tokens=[5] * 600),
        _batch(tokens=[-1]),
        _batch(tokens=[10**6]),
        _batch(slot=8),
        _batch(slot=-1),
        _batch(position=1),
        _batch(position=511),
    ],
    ids=["empty", "too long", "token -1", "token too high", "slot too high", "slot -1", "hole", "beyond context"],
)
def test_what_the_library_would_abort_on_is_refused_first(backend: LlamaBackend, bad: Batch) -> None:
    with pytest.raises(EngineError):
        backend.forward(bad)
    backend.check_integrity()
    assert len(greedy(backend, {0: PROMPTS[0]}, 2)[0]) == 2


def test_impossible_memory_moves_are_refused(backend: LlamaBackend) -> None:
    backend.forward(_batch())
    with pytest.raises(EngineError):
        backend.remove_range(0, 0, 1)  # would leave a hole
    with pytest.raises(EngineError):
        backend.remove_range(99, 0)
    with pytest.raises(EngineError):
        backend.copy_prefix(0, 1, 3)
    with pytest.raises(EngineError):
        backend.copy_prefix(0, 0, 1)
    backend.copy_prefix(0, 1, 1)
    with pytest.raises(EngineError):
        backend.copy_prefix(0, 1, 1)  # not empty
    backend.remove_range(0, 0)
    backend.remove_range(1, 0)
    backend.check_integrity()


def test_a_full_slot_is_refused_and_others_go_on(backend: LlamaBackend) -> None:
    backend.forward(_batch(slot=2, tokens=[7] * 500))
    backend.forward(_batch(slot=2, tokens=[7] * 12, position=500))
    with pytest.raises(EngineError):
        backend.forward(_batch(slot=2, tokens=[7], position=512))
    assert len(greedy(backend, {3: PROMPTS[3]}, 3)[3]) == 3
    backend.remove_range(2, 0)


@pytest.mark.parametrize("kv_type", ["f16", "q8_0", "q4_0"])
def test_every_kv_cache_type_works(tiny_path: Path, kv_type: str) -> None:
    model = load(catalog.entry_of_path(tiny_path), small_config(WORKER_KV_TYPE=kv_type))
    try:
        assert model.backend.form.kv_type == kv_type
        answers = greedy(model.backend, dict(enumerate(PROMPTS)), 4)
        assert all(len(answer) == 4 for answer in answers.values())
    finally:
        model.backend.close()


def test_close_is_final(tiny_path: Path) -> None:
    model = load(catalog.entry_of_path(tiny_path), small_config())
    model.backend.close()
    model.backend.close()
    with pytest.raises(EngineError):
        model.backend.forward(_batch())


def test_smollm2_knows_a_capital(smollm2: LoadedModel) -> None:
    tokenizer = Tokenizer(smollm2.kit)
    answer = greedy(smollm2.backend, {0: tokenizer.encode_text("The capital of France is")}, 5)[0]
    assert b"Paris" in b"".join(map(tokenizer.token_bytes, answer))


def test_the_engine_answers_questions_at_once_as_one_by_one() -> None:
    questions = [f"What is the capital of {c}?" for c in ("France", "Italy", "Spain", "Japan")]

    def answers(at_once: bool) -> list[str]:
        config = small_config(WORKER_KV_TYPE="q8_0")  # exact in any batch, see PROMPTS
        model = load(catalog.Catalog().entry("smollm2-135m"), config)  # the engine closes it
        builder = PromptBuilder(model.kit)
        engine = Engine(model.backend, end_tokens=model.end_tokens, target_itl_ms=100.0)
        engine.start()
        try:
            waits = []
            texts: list[list[int]] = []
            for question in questions:
                tokens: list[int] = []
                over = threading.Event()

                def sink(output: Output, tokens: list[int] = tokens, over: threading.Event = over) -> None:
                    if isinstance(output, Token):
                        tokens.append(output.id)
                    elif isinstance(output, Ended):
                        over.set()

                plan = SamplerPlan(temperature=0.0)
                prompt = builder.build(ask(question)).tokens
                none = np.empty(0, np.int32)
                engine.submit(Submission(uuid4(), prompt, none, plan, 10, "", 0, sink))
                texts.append(tokens)
                waits.append(over)
                if not at_once:
                    assert over.wait(60)
            assert all(over.wait(60) for over in waits)
        finally:
            engine.stop(10)
        return [b"".join(map(builder.tokenizer.token_bytes, tokens)).decode("utf-8", "replace") for tokens in texts]

    together = answers(at_once=True)
    assert "Tokyo" in together[3]
    assert together == answers(at_once=False)
