"""LoRA adapters: what they do to answers, what they cost, and wrong ones refused before llama.cpp sees them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import llama_cpp.llama_cpp as lib
import numpy as np
import numpy.typing as npt
import pytest

from inference import catalog, inspect
from inference.bench import shaped_model
from inference.bench.shaped_model import TINY
from inference.catalog import Adapter
from inference.engine.batch import Batch
from inference.errors import ModelFileError
from inference.llama import loader
from inference.model_files import gguf_header
from inference.model_files import lora as model_files_lora
from tests.model.conftest import small_config
from tests.model.test_backend import PROMPTS, greedy

pytestmark = pytest.mark.model

RANK, ALPHA = 4, 8.0
TARGETS = {  # name -> (inputs, outputs)
    "blk.1.attn_q.weight": (TINY.width, TINY.width),
    "blk.3.attn_k.weight": (TINY.width, TINY.kv_width),
    "blk.2.ffn_down.weight": (TINY.ffn, TINY.width),
}
Matrices = dict[str, npt.NDArray[np.float32]]


def matrices(seed: int = 1) -> Matrices:
    random = np.random.default_rng(seed)
    found: Matrices = {}
    for name, (inputs, outputs) in TARGETS.items():
        found[f"{name}.lora_a"] = random.normal(0, 1 / math.sqrt(inputs), (RANK, inputs)).astype(np.float32)
        found[f"{name}.lora_b"] = random.normal(0, 0.5, (outputs, RANK)).astype(np.float32)
    return found


def write(
    path: Path,
    tensors: Matrices | None = None,
    *,
    architecture: str = "smollm3",
    kind: str = "adapter",
    adapter_kind: str = "lora",
    change: Callable[[Any], None] = lambda writer: writer.add_float32("adapter.lora.alpha", ALPHA),
) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_type(kind)
    writer.add_string("adapter.type", adapter_kind)
    change(writer)
    for name, values in (matrices() if tensors is None else tensors).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def lora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("adapters") / "poems.gguf")


def load(base: Path, *adapters: Adapter) -> loader.LoadedModel:
    entry = replace(catalog.entry_of_path(base), adapters=adapters)
    return loader.load(entry, small_config(WORKER_KV_TYPE="q8_0"))


def answers(base: Path, *adapters: Adapter) -> dict[int, list[int]]:
    model = load(base, *adapters)
    try:
        return greedy(model.backend, dict(enumerate(PROMPTS)), 8)
    finally:
        model.backend.close()


def row(base: Path, *adapters: Adapter) -> npt.NDArray[np.float32]:
    model = load(base, *adapters)
    batch = Batch(64)
    batch.add(0, np.array(PROMPTS[7], np.int32), 0, wants_logits=True)
    model.backend.forward(batch)
    found = model.backend.logits()[0].copy()
    model.backend.close()
    return found


def test_an_adapter_changes_answers_by_its_scale_and_not_at_all_at_0(tiny_path: Path, lora: Path) -> None:
    alone = answers(tiny_path)
    assert answers(tiny_path, Adapter(path=str(lora), scale=0.0)) == alone
    whole = answers(tiny_path, Adapter(path=str(lora)))
    assert sum(whole[slot] != alone[slot] for slot in alone) > len(alone) // 2
    half = Adapter(path=str(lora), scale=0.5)
    np.testing.assert_allclose(row(tiny_path, half, half), row(tiny_path, Adapter(path=str(lora))), atol=0.3)


def test_an_adapter_is_what_its_product_added_to_the_weights_is(tmp_path: Path, tiny_path: Path, lora: Path) -> None:
    """Over unquantized weights, since merging into quantized ones would round them again."""
    tensors = {
        tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        for tensor in gguf.GGUFReader(tiny_path).tensors
    }
    base = _write_plain(tmp_path / "base.gguf", tensors)
    scale, parts = 0.7, matrices()
    for name in TARGETS:
        product = parts[f"{name}.lora_b"] @ parts[f"{name}.lora_a"]
        tensors[name] = tensors[name] + np.float32(scale * ALPHA / RANK) * product
    merged = row(_write_plain(tmp_path / "merged.gguf", tensors))
    np.testing.assert_allclose(row(base, Adapter(path=str(lora), scale=scale)), merged, atol=0.15)
    assert np.abs(row(base) - merged).max() > 1.0


def _write_plain(path: Path, tensors: Matrices) -> Path:
    writer = gguf.GGUFWriter(path, "smollm3")
    shaped_model._add_metadata(writer, TINY, "smaug-bpe", shaped_model.TEMPLATE)
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_an_adapter_is_told_on_the_card_and_counted_as_memory(
    tiny_path: Path, lora: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = load(tiny_path, Adapter(path=str(lora), scale=0.5))
    model.backend.close()
    assert model.card.adapters == ("poems x 0.5",)
    assert any("poems" in note for note in model.notes)
    num_bytes = 4 * RANK * sum(map(sum, TARGETS.values()))

    def inspected(*options: str) -> dict[str, Any]:
        assert inspect.main([str(tiny_path), "--json", *options]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    with_it, without = inspected("--adapter", str(lora)), inspected()
    assert with_it["memory_bytes"]["adapters"] == num_bytes
    assert with_it["memory_bytes"]["total"] - without["memory_bytes"]["total"] == num_bytes
    (said,) = with_it["adapters"]
    assert (said["name"], said["rank"], said["alpha"], said["num_pairs"]) == ("poems", RANK, ALPHA, len(TARGETS))
    assert without["adapters"] == []
    assert inspect.main([str(tiny_path), "--adapter", str(lora)]) == 0
    assert "poems x 1, rank 4, over 3 tensors" in capsys.readouterr().out


def _reshaped(name: str, shape: tuple[int, ...]) -> Matrices:
    return {**matrices(), name: np.zeros(shape, np.float32)}


def _without(name: str) -> Matrices:
    return {key: values for key, values in matrices().items() if key != name}


_EMBEDDINGS = {
    "token_embd.weight.lora_a": np.zeros((TINY.vocab, RANK), np.float32),
    "token_embd.weight.lora_b": np.zeros((TINY.width, RANK), np.float32),
}
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "architecture": ({"architecture": "llama"}, "is for a llama model"),
    "kind": ({"kind": "model"}, "is no adapter"),
    "adapter kind": ({"adapter_kind": "control"}, "only LoRA"),
    "inputs": ({"tensors": _reshaped("blk.1.attn_q.weight.lora_a", (RANK, 128))}, "does not fit"),
    "outputs": ({"tensors": _reshaped("blk.1.attn_q.weight.lora_b", (128, RANK))}, "does not fit"),
    "ranks": ({"tensors": _reshaped("blk.1.attn_q.weight.lora_b", (TINY.width, RANK + 1))}, "does not fit"),
    "dimensions": ({"tensors": _reshaped("blk.1.attn_q.weight.lora_b", (2, TINY.width, RANK))}, "does not fit"),
    "half": ({"tensors": _without("blk.1.attn_q.weight.lora_b")}, "only one half"),
    "layer": (
        {"tensors": {"blk.9.attn_q.weight.lora_a": np.zeros((4, 256), np.float32)} | _EMBEDDINGS},
        "only one half",
    ),
    "unknown": (
        {
            "tensors": {
                "blk.9.attn_q.weight.lora_a": np.zeros((4, 256), np.float32),
                "blk.9.attn_q.weight.lora_b": np.zeros((256, 4), np.float32),
            }
        },
        "does not have",
    ),
    "suffix": ({"tensors": {**matrices(), "blk.1.attn_q.weight": np.zeros((4, 4), np.float32)}}, "no half of a LoRA"),
    "tied embeddings": ({"tensors": {**matrices(), **_EMBEDDINGS}}, "output's weights as well"),
    "whole numbers": (
        {"tensors": {**matrices(), "blk.1.attn_q.weight.lora_a": np.zeros((RANK, TINY.width), np.int32)}},
        "cannot be multiplied",
    ),
    "nothing": ({"tensors": {}}, "holds no weights"),
    "alpha": ({"change": lambda writer: writer.add_float64("adapter.lora.alpha", ALPHA)}, "32-bit"),
    "alpha nan": ({"change": lambda writer: writer.add_float32("adapter.lora.alpha", math.nan)}, "32-bit"),
    "alpha text": ({"change": lambda writer: writer.add_string("adapter.lora.alpha", "8")}, "alpha"),
    "alora": (
        {"change": lambda writer: writer.add_array("adapter.alora.invocation_tokens", [1, 2])},
        "aLoRA",
    ),
}


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong)
def test_a_wrong_adapter_is_refused_by_name(tiny_path: Path, tmp_path: Path, wrong: str) -> None:
    how, word = WRONG[wrong]
    path = write(tmp_path / "wrong.gguf", **how)
    with pytest.raises(ModelFileError, match=rf"wrong\.gguf.*{word}"):
        load(tiny_path, Adapter(path=str(path)))


@pytest.mark.parametrize("share", [0.0, 0.01, 0.1, 0.5, 0.999])
def test_a_cut_adapter_is_refused_by_name(tiny_path: Path, tmp_path: Path, lora: Path, share: float) -> None:
    data = lora.read_bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(ModelFileError, match=r"cut\.gguf"):
        load(tiny_path, Adapter(path=str(path)))


def test_a_missing_adapter_and_one_of_another_sha256_are_refused_by_name(tiny_path: Path, lora: Path) -> None:
    with pytest.raises(ModelFileError, match=r"none\.gguf"):
        load(tiny_path, Adapter(path=str(lora.with_name("none.gguf"))))
    with pytest.raises(ModelFileError, match=r"poems\.gguf.*sha256"):
        load(tiny_path, Adapter(path=str(lora), sha256="0" * 64))


def test_what_passes_the_check_is_what_the_library_takes(tiny_path: Path, tmp_path: Path) -> None:
    """Adapters that are unusual but sound: half precision, other ranks, a norm beside the pairs, no alpha."""
    half = {name: values.astype(np.float16) for name, values in matrices().items()}
    norm = {**matrices(), "blk.0.attn_norm.weight": np.ones(TINY.width, np.float32)}
    first = next(iter(TARGETS))
    ranks = {
        **matrices(),
        f"{first}.lora_a": np.ones((1, TINY.width), np.float32),
        f"{first}.lora_b": np.ones((TINY.width, 1), np.float32),
    }
    base = gguf_header.read(tiny_path)
    for number, tensors in enumerate((half, norm, ranks)):
        path = write(tmp_path / f"{number}.gguf", tensors, change=lambda writer: None)
        assert model_files_lora.check(gguf_header.read(path), base).alpha == 0.0
        assert np.isfinite(row(tiny_path, Adapter(path=str(path)))).all()


def test_damage_anywhere_in_the_head_never_ends_the_process(tiny_path: Path, tmp_path: Path, lora: Path) -> None:
    """Every single byte of the head, in turn: refused in our words, or a sound adapter to the library too."""
    data = lora.read_bytes()
    header = gguf_header.read(lora)
    base = gguf_header.read(tiny_path)
    params = lib.llama_model_default_params()
    params.n_gpu_layers = 0
    model = lib.llama_model_load_from_file(str(tiny_path).encode(), params)
    path = tmp_path / "hurt.gguf"
    num_sound, refusals = 0, set()
    try:
        for at in range(0, header.data_offset, 3):
            damaged = bytearray(data)
            damaged[at] ^= 0xFF
            path.write_bytes(damaged)
            try:
                model_files_lora.check(gguf_header.read(path), base)
            except ModelFileError as error:
                refusals.add(error.message)
                continue
            num_sound += 1
            if handle := lib.llama_adapter_lora_init(model, str(path).encode()):
                lib.llama_adapter_lora_free(handle)
    finally:
        lib.llama_model_free(model)
    assert all("hurt.gguf" in sentence for sentence in refusals)
    assert 0 < num_sound < header.data_offset // 6


def test_catalog_entries_name_adapters_like_models(tmp_path: Path, lora: Path) -> None:
    def entries(adapters: str) -> catalog.CatalogEntry:
        file = tmp_path / "models.toml"
        file.write_text(
            f'[models.m]\ntitle = "M"\nsource = {{ path = "m.gguf" }}\ncontext_tokens = 512\nadapters = {adapters}\n'
        )
        return catalog.Catalog(str(file), model_dir=str(lora.parent)).entry("m")

    found = entries(f'[{{ path = "{lora}", scale = 0.5 }}, {{ hub = "owner/repo", file = "deep/poems.gguf" }}]')
    assert found.adapters == (Adapter(path=str(lora), scale=0.5), Adapter(path=str(lora)))
    for wrong, word in (
        ("[{ scale = 1.0 }]", "adapter 1: source must"),
        (f'[{{ path = "{lora}" }}, {{ path = "{lora}", scale = 11.0 }}]', "adapter 2: scale"),
        (f'[{{ path = "{lora}", scale = nan }}]', "adapter 1: scale"),
        (f'[{{ path = "{lora}", sha256 = "x" }}]', "adapter 1: sha256"),
        (f'[{{ path = "{lora}", weight = 1.0 }}]', "weight"),
    ):
        with pytest.raises(catalog.ConfigError, match=word):
            entries(wrong)


def test_fetching_a_model_fetches_and_checks_its_adapters(tiny_path: Path, tmp_path: Path, lora: Path) -> None:
    wrong = write(tmp_path / "wrong.gguf", architecture="llama")
    found = catalog.Catalog()
    entry = replace(catalog.entry_of_path(tiny_path), adapters=(Adapter(path=str(lora)),))
    assert found.fetch(entry).path == tiny_path
    with pytest.raises(ModelFileError, match=r"wrong\.gguf"):
        found.fetch(replace(entry, adapters=(Adapter(path=str(lora)), Adapter(path=str(wrong)))))
