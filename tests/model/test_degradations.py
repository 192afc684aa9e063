"""A worker that gives less than it should says so: in its log, as a number, and as a sentence for its card."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from inference import catalog, config
from inference.bench import shaped_model
from inference.bench.shaped_model import TINY
from inference.catalog import CatalogEntry, Source
from inference.config import InferenceConfig
from inference.engine.batch import Batch
from inference.llama import device, loader
from inference.llama.context import ContextForm
from inference.llama.loader import LoadedModel
from inference.model_files import gguf_header, memory_estimate
from inference.prompt.builder import PromptBuilder
from inference.prompt.tokenizer import PRE_TOKENIZERS
from tests.model.conftest import small_config
from tests.model.test_prompts import ask

pytestmark = pytest.mark.model

ON_CPU = small_config(WORKER_GPU_LAYERS="0")  # asked for, so no degradation


def loaded(entry: CatalogEntry, config: InferenceConfig, words: tuple[str, ...]) -> loader.LoadedModel:
    """The model, once its degradations are seen to be these, in every place where they are told."""
    with capture_logs() as lines:
        model = loader.load(entry, config)
    try:
        said = model.degradations
        assert len(said) == len(words), said
        assert all(word in sentence for word, sentence in zip(words, said, strict=True)), said
        logged = [(line["reason"], line["log_level"]) for line in lines if line["event"] == "model_degraded"]
        assert logged == [(sentence, "warning") for sentence in said]
        assert REGISTRY.get_sample_value("smolfleet_worker_degradations", {"model": entry.name}) == len(said)
        assert not set(said) & set(model.notes)
    except BaseException:
        model.backend.close()
        raise
    return model


@pytest.mark.parametrize(("config", "words"), [(ON_CPU, ()), (small_config(), ("No GPU",))], ids=["asked", "lacking"])
def test_no_gpu_is_told_unless_none_was_asked_for(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch, config: InferenceConfig, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr(device, "gpus", list)  # the machine's; these tests run with and without
    loaded(catalog.entry_of_path(tiny_path), config, words).backend.close()


def test_short_memory_is_told(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = gguf_header.read(tiny_path)
    need = memory_estimate.estimate(header, context_tokens=512, slots=2, kv_type="f16", on_gpu=False).context
    monkeypatch.setattr(device, "free_memory_bytes", lambda: int(need / (1 - loader.MEMORY_RESERVE)) + 1)
    words = ("Memory was short: 2 conversations at a time instead of 8.",)
    loaded(catalog.entry_of_path(tiny_path), ON_CPU, words).backend.close()


def test_a_file_without_a_template_is_served_by_chatml_and_told(tmp_path: Path) -> None:
    path = shaped_model.write(tmp_path / "bare.gguf", template="")
    entry = CatalogEntry(name="bare", title="Bare", source=Source(path=str(path)), context_tokens=512)
    model = loaded(entry, ON_CPU, ("has no chat template; ChatML is used",))
    model.backend.close()
    builder = PromptBuilder(model.kit)
    starts = builder.build(ask("Hello")).tokens.tolist().count(builder.tokenizer.id_of("<|im_start|>"))
    assert starts == 2


def test_a_tokenizer_that_differs_is_told(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRE_TOKENIZERS, "smaug-bpe", PRE_TOKENIZERS["gpt-2"])  # what a new model's could be taken for
    loaded(catalog.entry_of_path(tiny_path), ON_CPU, ("tokenizer differs from llama.cpp's at token",)).backend.close()


def test_yarn_is_told_with_its_factor_and_is_no_degradation(tiny_path: Path) -> None:
    entry = replace(catalog.entry_of_path(tiny_path), max_context_tokens=2 * TINY.context_tokens)
    config = small_config(WORKER_GPU_LAYERS="0", WORKER_CONTEXT_TOKENS="3072", WORKER_SLOTS="1")
    model = loaded(entry, config, ())
    model.backend.close()
    assert any("may fill 3,072 tokens" in note and "stretches its positions 1.5 times" in note for note in model.notes)


@pytest.mark.parametrize(
    "settings",
    [
        {"WORKER_CONTEXT_TOKENS": "1000", "WORKER_SLOTS": "3"},
        {"WORKER_CONTEXT_TOKENS": "1024", "WORKER_SLOTS": "4", "WORKER_KV_TOKENS": "700"},
        {"WORKER_CONTEXT_TOKENS": "2048", "WORKER_SLOTS": "2", "WORKER_KV_TYPE": "q8_0"},
    ],
    ids=lambda settings: "-".join(settings.values()),
)
def test_the_card_promises_no_more_tokens_than_a_slot_holds(tiny_path: Path, settings: dict[str, str]) -> None:
    model = loader.load(catalog.entry_of_path(tiny_path), small_config(**settings))
    try:
        promised = model.card.context_tokens
        assert promised == model.kit.context_tokens == model.backend.context_tokens
        batch = Batch(model.backend.max_batch_tokens)
        for start in range(0, promised, 256):
            batch.clear()
            batch.add(0, np.full(256, 300 + start // 256, np.int32), start, wants_logits=True)
            model.backend.forward(batch)
            assert np.isfinite(model.backend.logits()).all()
        model.backend.check_integrity()
        assert model.backend.length(0) == promised
    finally:
        model.backend.close()


def cpu_form(
    path: Path, monkeypatch: pytest.MonkeyPatch, *, free: int, cores: int = 8, **settings: str
) -> tuple[ContextForm, LoadedModel]:
    """What a worker on a CPU of `cores` takes of `free` bytes; its model is closed already."""
    monkeypatch.setattr(device, "free_memory_bytes", lambda: free)
    monkeypatch.setattr(device, "usable_cores", lambda: cores)
    model = loader.load(catalog.entry_of_path(path), config.load({"WORKER_GPU_LAYERS": "0", **settings}))
    form = model.backend.form
    model.backend.close()
    return form, model


def test_slots_go_by_cores_unless_somebody_names_them(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog_slots = catalog.entry_of_path(tiny_path).slots
    assert [memory_estimate.cpu_slots(8, cores) for cores in (1, 2, 4, 8, 64)] == [2, 2, 2, 4, 8]
    form, model = cpu_form(tiny_path, monkeypatch, free=10**11, cores=6)
    assert (form.slots, model.degradations) == (3, ())
    form, _ = cpu_form(tiny_path, monkeypatch, free=10**11, cores=6, WORKER_SLOTS=str(catalog_slots + 1))
    assert form.slots == catalog_slots + 1


def test_a_worker_on_a_cpu_takes_half_of_what_is_free_and_says_nothing(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = gguf_header.read(tiny_path)
    context_tokens = catalog.completed(catalog.entry_of_path(tiny_path), header).context_tokens

    def need(slots: int) -> int:
        size = memory_estimate.estimate(header, context_tokens=context_tokens, slots=slots, kv_type="f16", on_gpu=False)
        return size.context + size.weights + size.repacked

    assert need(2) < need(3) < need(4)
    for free, slots in ((2 * need(4), 4), (2 * need(4) - 2, 2), (4 * need(4), 4)):
        form, model = cpu_form(tiny_path, monkeypatch, free=free)
        assert (form.slots, form.context_tokens) == (slots, context_tokens)
        assert model.degradations == ()
        assert model.host_cache_bytes <= max(0, free // 2 - need(slots))


def test_a_smaller_share_is_kept_and_a_named_size_may_take_it_all(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = gguf_header.read(tiny_path)
    whole = memory_estimate.estimate(header, context_tokens=2048, slots=4, kv_type="f16", on_gpu=False)
    free = int((whole.context + whole.weights + whole.repacked) * 1.2)
    named = {"WORKER_SLOTS": "4", "WORKER_CONTEXT_TOKENS": "2048"}
    form, model = cpu_form(tiny_path, monkeypatch, free=free, **named)
    assert (form.slots, form.context_tokens, model.degradations) == (4, 2048, ())
    form, model = cpu_form(tiny_path, monkeypatch, free=free, WORKER_MEMORY_PERCENT="50", **named)
    assert form.slots < 4
    assert len(model.degradations) == 1
    assert "Memory was short" in model.degradations[0]
