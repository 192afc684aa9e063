"""Model files that are missing, broken or elsewhere, and settings that do not fit."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

import pytest

from inference import catalog, gguf_header
from inference.catalog import CatalogEntry, Source
from inference.errors import ModelFileError
from inference.llama import device, loader
from inference.llama.loader import load
from tests.model import tiny_smollm3
from tests.model.conftest import small_config

pytestmark = pytest.mark.model


def entry_of(path: Path, sha256: str = "") -> CatalogEntry:
    return CatalogEntry(name="m", title="M", source=Source(path=str(path), sha256=sha256), context_tokens=512)


def test_header_says_what_the_writer_wrote(tiny_path: Path) -> None:
    header = gguf_header.read(tiny_path)
    assert header.architecture == "smollm3"
    assert header.quantization == "Q4_K_M"
    assert header.trained_context_tokens == tiny_smollm3.CONTEXT_TOKENS
    assert header.num_vocab_tokens % 256 == 0
    kinds = {t.ggml_type for t in header.tensors}
    assert kinds == {0, 12, 14}
    assert header.kv_bytes_per_token(2.0) == 2 * 64 * 2 * tiny_smollm3.LAYERS


@pytest.mark.parametrize("share", [0.0, 0.00001, 0.001, 0.02, 0.05, 0.5, 0.999])
def test_a_cut_file_is_refused_by_name(tiny_path: Path, tmp_path: Path, share: float) -> None:
    data = tiny_path.read_bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(ModelFileError, match=r"cut\.gguf"):
        load(entry_of(path), small_config())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GGUF",
        b"<!doctype html><html><body>404 not found</body></html>",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n",
        b"GGUF" + struct.pack("<IQQ", 99, 0, 0),
        b"GGUF" + struct.pack("<IQQ", 3, 2**60, 2**60),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2**62) + bytes(64),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 8, 2**61) + bytes(64),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 10, 2**61) + bytes(64),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<I", 77) + bytes(64),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 0) + bytes(64),
    ],
    ids=[
        "empty",
        "magic only",
        "html",
        "lfs pointer",
        "version",
        "counts",
        "name",
        "strings",
        "numbers",
        "type",
        "bare",
    ],
)
def test_a_file_that_is_no_model_is_refused_by_name(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelFileError, match=r"broken\.gguf"):
        load(entry_of(path), small_config())


def test_a_missing_file_and_a_folder_are_refused_by_name(tmp_path: Path) -> None:
    for path in (tmp_path / "none.gguf", tmp_path):
        with pytest.raises(ModelFileError, match=path.name):
            load(entry_of(path), small_config())


def test_a_wrong_sha256_is_refused(tiny_path: Path) -> None:
    right = hashlib.sha256(tiny_path.read_bytes()).hexdigest()
    assert catalog.resolve(entry_of(tiny_path, right)) == tiny_path
    with pytest.raises(ModelFileError, match="sha256"):
        catalog.resolve(entry_of(tiny_path, "0" * 64))


def test_an_unknown_architecture_is_llama_cpps_refusal_in_our_words(tiny_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "odd.gguf"
    path.write_bytes(tiny_path.read_bytes().replace(b"smollm3", b"smollmX"))
    with pytest.raises(ModelFileError, match=r"odd\.gguf"):
        load(entry_of(path), small_config())


def test_short_memory_means_less_context_then_fewer_slots_and_is_said(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    per_token = gguf_header.read(tiny_path).kv_bytes_per_token(2.0)
    entry = catalog.entry_of_path(tiny_path)
    assert loader.SMALLEST_USEFUL_CONTEXT == 2048
    for free_tokens, slots in ((8 * 2048, 4), (2 * 2048, 1)):
        # What is free is the machine's; this is the outer seam where it is read.
        monkeypatch.setattr(device, "free_memory_bytes", lambda n=free_tokens: int(n * per_token))
        model = load(entry, small_config(WORKER_CONTEXT_TOKENS="2048"))
        try:
            assert (model.backend.num_slots, model.backend.context_tokens) == (slots, 2048)
            assert any("Memory was short" in note for note in model.notes)
        finally:
            model.backend.close()
    monkeypatch.setattr(device, "free_memory_bytes", lambda: 1000)
    with pytest.raises(ModelFileError, match="not enough memory"):
        load(entry, small_config())


def test_more_context_than_the_model_takes_is_not_granted_and_said(tiny_path: Path) -> None:
    model = load(catalog.entry_of_path(tiny_path), small_config(WORKER_CONTEXT_TOKENS="100000", WORKER_SLOTS="1"))
    try:
        assert model.backend.context_tokens == tiny_smollm3.CONTEXT_TOKENS
        assert any("at most 2,048" in note for note in model.notes)
    finally:
        model.backend.close()
