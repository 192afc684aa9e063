"""Model files that are missing, broken or elsewhere, and settings that do not fit."""

from __future__ import annotations

import hashlib
import random
import resource
import struct
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from inference import catalog
from inference.bench.shaped_model import TINY
from inference.catalog import CatalogEntry, Source
from inference.errors import ModelFileError
from inference.llama import device, loader
from inference.llama.context import ContextForm
from inference.llama.loader import load
from inference.model_files import check, gguf_header, memory_estimate
from tests import small_gguf
from tests.model.conftest import small_config

pytestmark = pytest.mark.model


def entry_of(path: Path, sha256: str = "") -> CatalogEntry:
    return CatalogEntry(name="m", title="M", source=Source(path=str(path), sha256=sha256), context_tokens=512)


def test_header_says_what_the_writer_wrote(tiny_path: Path) -> None:
    header = gguf_header.read(tiny_path)
    assert header.architecture == "smollm3"
    assert header.quantization == "Q4_K_M"
    assert header.trained_context_tokens == TINY.context_tokens
    assert header.num_vocab_tokens % 256 == 0
    kinds = {t.ggml_type for t in header.tensors}
    assert kinds == {0, 12, 14}
    assert header.kv_bytes_per_token(2.0) == 2 * 64 * 2 * TINY.layers


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
    assert catalog.resolve(entry_of(tiny_path, right)).path == tiny_path
    with pytest.raises(ModelFileError, match="sha256"):
        catalog.resolve(entry_of(tiny_path, "0" * 64))


def test_an_unknown_architecture_is_llama_cpps_refusal_in_our_words(tiny_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "odd.gguf"
    path.write_bytes(tiny_path.read_bytes().replace(b"smollm3", b"smollmX"))
    with pytest.raises(ModelFileError, match=r"odd\.gguf"):
        load(entry_of(path), small_config())


@pytest.fixture
def small_path(tmp_path: Path) -> Path:
    return small_gguf.write(tmp_path / "small.gguf", more=small_gguf.TOKENS)


def read_all(path: Path) -> None:
    """Everything that is asked of a file before llama.cpp sees it."""
    header = gguf_header.read(path)
    check.check(header)
    memory_estimate.estimate(header, context_tokens=512, slots=2, kv_type="f16", on_gpu=False)


def refusal(path: Path) -> str:
    """What is wrong with the file, "" if nothing is."""
    try:
        read_all(path)
    except ModelFileError as error:
        return error.message
    return ""


def test_a_file_cut_at_any_byte_is_refused_by_name(small_path: Path, tmp_path: Path) -> None:
    data = small_path.read_bytes()
    read_all(small_path)
    path = tmp_path / "cut.gguf"
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(ModelFileError, match=r"cut\.gguf"):
            read_all(path)


def test_any_flipped_bit_of_a_header_is_read_or_refused_with_little_memory(small_path: Path, tmp_path: Path) -> None:
    data = small_path.read_bytes()
    header_bytes = gguf_header.read(small_path).data_offset
    path = tmp_path / "flipped.gguf"
    num_refused = 0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for bit in range(header_bytes * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        said = refusal(path)
        assert not said or "flipped.gguf" in said
        num_refused += bool(said)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000, "in KiB"
    assert num_refused > header_bytes, "lengths, counts, kinds, names of keys: most bits matter"


def test_random_damage_to_a_real_header_is_read_or_refused(tiny_path: Path, tmp_path: Path) -> None:
    data = tiny_path.read_bytes()
    header_bytes = gguf_header.read(tiny_path).data_offset
    path = tmp_path / "flipped.gguf"
    draw = random.Random(11)
    for _ in range(150):
        flipped = bytearray(data)
        for _ in range(draw.choice((1, 1, 8, 64))):
            flipped[draw.randrange(header_bytes)] = draw.randrange(256)
        path.write_bytes(flipped)
        said = refusal(path)
        assert not said or "flipped.gguf" in said


@pytest.mark.parametrize(
    "claim",
    [
        small_gguf.list_head("k", 0, 2**29),
        small_gguf.list_head("k", 10, 2**26),
        small_gguf.list_head("k", 8, 2**26),
        small_gguf.list_head("k", 8, 2) + struct.pack("<Q", 2**29),
        small_gguf.list_head("k", 9, 2**26),
        small_gguf.string("k") + struct.pack("<IQ", 8, 2**29),
        struct.pack("<Q", 2**29),
    ],
    ids=["bytes", "numbers", "strings", "a string in a list", "lists", "a string", "a name"],
)
def test_a_claim_that_a_large_file_could_hold_is_not_believed(tmp_path: Path, claim: bytes) -> None:
    path = tmp_path / "large.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + claim)
    with path.open("r+b") as file:
        file.truncate(2**30)  # a sparse file: it takes no room
    tracemalloc.start()
    with pytest.raises(ModelFileError, match=r"large\.gguf"):
        gguf_header.read(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


SPLIT = (small_gguf.number_value("split.count", 3), small_gguf.number_value("split.no", 1))
ENTRY = small_gguf.tensor_entry
KINDS = small_gguf.numbers_value("tokenizer.ggml.token_type", [1])


def tokens(texts: list[str]) -> bytes:
    return small_gguf.strings_value("tokenizer.ggml.tokens", texts)


@pytest.mark.parametrize(
    ("name", "write", "words"),
    [
        ("m-00002-of-00003.gguf", small_gguf.write, "part 2 of 3"),
        ("m.gguf", lambda p: small_gguf.write(p, more=SPLIT), "part 2 of 3"),
        ("m.gguf", lambda p: small_gguf.write(p, "clip"), "mmproj"),
        ("m.gguf", lambda p: small_gguf.write(p, "bert"), "vectors"),
        ("m.gguf", lambda p: small_gguf.write(p, "t5"), "encoder"),
        ("m.gguf", lambda p: small_gguf.write(p, "llada"), "diffusion"),
        ("m.gguf", lambda p: small_gguf.write(p, "eagle3"), "draft"),
        ("m.gguf", lambda p: small_gguf.write(p, more=(small_gguf.text_value("general.type", "adapter"),)), "LoRA"),
        ("m.gguf", lambda p: small_gguf.write(p, tensors=()), "no weights"),
        ("m.gguf", lambda p: small_gguf.write(p, tensors=(ENTRY("output.weight", (32, 2), 0),)), "token_embd"),
        ("m.gguf", lambda p: small_gguf.write(p, tensors=(ENTRY("token_embd.weight", (16, 2), 0),)), "fit itself"),
        ("m.gguf", lambda p: small_gguf.write(p, tensors=(ENTRY("token_embd.weight", (32, 2), 0),)), "layer 0"),
        ("m.gguf", lambda p: small_gguf.write(p, byte_order=">"), "big-endian"),
        ("m.gguf", lambda p: small_gguf.write(p, version=1), "version 1"),
        ("m.gguf", lambda p: small_gguf.write(p, more=(small_gguf.number_value("llama.block_count", 1),)), "twice"),
        ("m.gguf", lambda p: small_gguf.write(p, tensors=(ENTRY("a", (32,), 0), ENTRY("a", (32,), 128))), "one name"),
        ("m.gguf", lambda p: small_gguf.write(p, tensors=(ENTRY("a", (32,), 5),)), "odd place"),
        ("m.gguf", lambda p: small_gguf.write(p, tensors=(ENTRY("a", (32,), 0, 12),)), "whole blocks of Q4_K"),
        ("m.gguf", lambda p: small_gguf.write(p, tensors=(ENTRY("a", (2**40, 2**40), 0),)), "cut"),
        ("m.gguf", lambda p: small_gguf.write(p, more=(tokens(["a", "a"]),)), "two tokens of one text"),
        ("m.gguf", lambda p: small_gguf.write(p, more=(tokens(["a", "b"]), KINDS)), "1 of .*token_type for 2"),
    ],
)
def test_a_file_of_another_kind_is_named_as_what_it_is(
    tmp_path: Path, name: str, write: Callable[[Path], Path], words: str
) -> None:
    path = write(tmp_path / name)
    for refuse in (lambda: catalog.entry_of_path(path), lambda: load(entry_of(path), small_config())):
        with pytest.raises(ModelFileError, match=words) as error:
            refuse()
        assert str(path) in error.value.message


def shape(form: ContextForm) -> tuple[int, int, str]:
    return form.context_tokens, form.slots, form.kv_type


def test_the_ladder_gives_up_context_then_slots_then_bits_of_the_cache() -> None:
    whole = ContextForm(context_tokens=8192, slots=4, batch_tokens=512, kv_type="f16", threads=1, unified=False)
    assert [shape(form) for form in loader._ladder(whole)] == [
        (8192, 4, "f16"),
        (4096, 4, "f16"),
        (2048, 4, "f16"),
        (2048, 2, "f16"),
        (2048, 1, "f16"),
        (2048, 1, "q8_0"),
        (2048, 1, "q4_0"),
        (1024, 1, "q4_0"),
        (512, 1, "q4_0"),
    ]
    pooled = ContextForm(
        context_tokens=8192, slots=4, batch_tokens=512, kv_type="q8_0", threads=1, unified=True, pool_tokens=20480
    )
    totals = [form.total_tokens for form in loader._ladder(pooled)]
    assert totals == sorted(totals, reverse=True)
    assert totals[:4] == [20480, 10240, 8192, 4096]
    assert {form.kv_type for form in loader._ladder(pooled)} == {"q8_0", "q4_0"}


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ((2048, 8, "f16"), []),
        ((2048, 4, "f16"), ["4 conversations"]),
        ((2048, 1, "f16"), ["1 conversations"]),
        ((2048, 1, "q8_0"), ["1 conversations", "q8_0 instead of f16"]),
        ((512, 1, "q4_0"), ["512 tokens", "1 conversations", "q4_0 instead of f16"]),
    ],
)
def test_short_memory_costs_what_it_must_and_is_said(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: tuple[int, int, str], words: list[str]
) -> None:
    assert loader.SMALLEST_USEFUL_CONTEXT == 2048
    header = gguf_header.read(tiny_path)
    context_tokens, slots, kv_type = wanted
    need = memory_estimate.estimate(
        header, context_tokens=context_tokens, slots=slots, kv_type=kv_type, on_gpu=False
    ).context
    # What is free is the machine's; this is the outer seam where it is read.
    monkeypatch.setattr(device, "free_memory_bytes", lambda: int(need / (1 - loader.MEMORY_RESERVE)) + 1)
    model = load(catalog.entry_of_path(tiny_path), small_config(WORKER_CONTEXT_TOKENS="2048"))
    try:
        form = model.backend.form
        assert (form.context_tokens, form.slots, form.kv_type) == wanted
        assert model.card.context_tokens == context_tokens, "what is advertised is what there is"
        assert model.kit.context_tokens == context_tokens, "and what the site counts by"
        notes = [note for note in model.degradations if "Memory was short" in note]
        assert len(notes) == len(words)
        assert all(word in note for word, note in zip(words, notes)), notes
    finally:
        model.backend.close()


def test_no_memory_at_all_is_a_refusal_with_the_need(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "free_memory_bytes", lambda: 1000)
    with pytest.raises(ModelFileError, match=r"not enough memory.*\d+ MiB"):
        load(catalog.entry_of_path(tiny_path), small_config())


def test_more_context_than_the_model_takes_is_not_granted_and_said(tiny_path: Path) -> None:
    model = load(catalog.entry_of_path(tiny_path), small_config(WORKER_CONTEXT_TOKENS="100000", WORKER_SLOTS="1"))
    try:
        assert model.backend.context_tokens == TINY.context_tokens
        assert any("at most 2,048" in note for note in model.degradations)
    finally:
        model.backend.close()


def test_twice_the_trained_context_is_granted_where_the_entry_allows_it_and_is_yarns(tiny_path: Path) -> None:
    entry = replace(catalog.entry_of_path(tiny_path), max_context_tokens=2 * TINY.context_tokens)
    for wanted, granted, factor in ((2048, 2048, 1.0), (4096, 4096, 2.0), (8192, 4096, 2.0)):
        model = load(entry, small_config(WORKER_CONTEXT_TOKENS=str(wanted), WORKER_SLOTS="2"))
        try:
            form = model.backend.form
            assert (form.context_tokens, form.yarn_factor) == (granted, factor)
            assert (model.card.context_tokens, model.kit.context_tokens) == (granted, granted)
            assert any("at most 4,096" in note for note in model.degradations) == (wanted > granted)
            assert any("YaRN stretches its positions 2 times" in note for note in model.notes) == (factor > 1)
        finally:
            model.backend.close()
    smaller = [form.yarn_factor for form in loader._ladder(form)]
    assert smaller[:2] == [2.0, 1.0], "a context that shrank to the trained one is not stretched"
