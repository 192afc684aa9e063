"""The estimate of memory against llama.cpp's own numbers, for models of many shapes and contexts of many sizes."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from pathlib import Path

import llama_cpp.llama_cpp as lib
import pytest

from inference import catalog
from inference.bench import shaped_model
from inference.bench.shaped_model import Shape
from inference.llama import native_log
from inference.llama.context import ContextForm, new_context
from inference.model_files import gguf_header, memory_estimate

pytestmark = pytest.mark.model

# Wide and narrow feed-forward parts, few and many KV heads, a vocabulary that outweighs the rest.
SHAPES = [
    Shape(layers=2, width=256, ffn=512, heads=4, kv_heads=1, vocab=3072, context_tokens=4096),
    Shape(layers=3, width=512, ffn=2816, heads=8, kv_heads=2, vocab=2048, context_tokens=4096),
    Shape(layers=1, width=512, ffn=512, heads=8, kv_heads=2, vocab=2048, context_tokens=4096),
    Shape(layers=1, width=512, ffn=256, heads=4, kv_heads=4, vocab=16_384, context_tokens=4096),
]
FORMS = [(512, 4, "f16", False), (2048, 8, "f16", False), (512, 64, "f16", True), (1024, 2, "q8_0", False)]


@pytest.fixture
def library_log() -> Iterator[list[str]]:
    lines: list[str] = []
    keep = lib.llama_log_callback(lambda level, text, _: lines.append(text.decode("utf-8", "replace")))
    lib.llama_log_set(keep, ctypes.c_void_p(0))
    yield lines
    native_log.quiet()


def buffers(lines: list[str]) -> dict[str, float]:
    """Bytes by kind of buffer, as the library logged them."""
    found: dict[str, float] = {}
    for line in lines:
        if match := re.search(r"CPU(?:_Mapped|_REPACK)? +(model|KV|output|compute) buffer size = +([\d.]+) MiB", line):
            kind = "repacked" if "_REPACK" in line else match[1]
            found[kind] = found.get(kind, 0.0) + float(match[2]) * memory_estimate.MIB
    return found


def check(path: Path, forms: list[tuple[int, int, str, bool]], lines: list[str]) -> None:
    header = gguf_header.read(path)
    params = lib.llama_model_default_params()
    params.n_gpu_layers = 0
    model = lib.llama_model_load_from_file(str(path).encode(), params)
    of_model = buffers(lines)
    rounding = 0.02 * memory_estimate.MIB
    try:
        for context_tokens, slots, kv_type, unified in forms:
            lines.clear()
            form = ContextForm(
                context_tokens=context_tokens,
                slots=slots,
                batch_tokens=512,
                kv_type=kv_type,
                threads=1,
                unified=unified,
            )
            context = new_context(model, form)
            assert context
            lib.llama_free(context)
            found = of_model | buffers(lines)
            expected = memory_estimate.estimate(
                header,
                context_tokens=context_tokens,
                slots=slots,
                kv_type=kv_type,
                on_gpu=False,
                is_unified=unified,
                graph_tokens=512,
            )
            assert found["KV"] == pytest.approx(expected.kv, abs=rounding)
            assert found["output"] == pytest.approx(expected.outputs, abs=rounding)
            assert found["compute"] == pytest.approx(expected.compute, rel=0.1, abs=rounding)
            assert found["model"] == pytest.approx(expected.weights, rel=0.01, abs=rounding)
            assert found.get("repacked", 0.0) == pytest.approx(expected.repacked, rel=0.01, abs=rounding)
    finally:
        lib.llama_model_free(model)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_estimate_is_what_the_library_takes(tmp_path: Path, library_log: list[str], shape: Shape) -> None:
    check(shaped_model.write(tmp_path / "m.gguf", shape), FORMS, library_log)


def test_estimate_holds_for_a_real_model(library_log: list[str]) -> None:
    path = catalog.resolve(catalog.Catalog().entry("smollm2-135m")).path
    check(path, [(512, 4, "f16", False), (512, 4, "q4_0", False)], library_log)
