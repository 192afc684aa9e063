"""`python -m inference.inspect`: what it says of a file is what its writer wrote, and bad input is one sentence."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from inference import inspect
from inference.bench import shaped_model, shaped_vocabulary
from inference.bench.shaped_model import SMOLLM3_3B, Shape
from inference.inspect import main, template_facts
from inference.model_files import gguf_header, memory_estimate
from tests import small_gguf

ROOT = Path(__file__).resolve().parents[2]
SHAPE = Shape(layers=9, width=512, ffn=1536, heads=8, kv_heads=2, vocab=2048, context_tokens=4096)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shaped_model.write(tmp_path_factory.mktemp("inspect") / "m.gguf", SHAPE)


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert main([*map(str, arguments), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def test_json_says_what_the_writer_wrote(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = said(capsys, path)
    assert facts["architecture"] == "smollm3"
    assert (facts["block_count"], facts["head_count"], facts["head_count_kv"]) == (9, 8, 2)
    assert (facts["gqa_ratio"], facts["gqa_saving"]) == (4.0, 0.75)
    assert (facts["vocab_size"], facts["context_length"]) == (2048, 4096)
    assert facts["nope_layers"] == [3, 7]
    assert facts["tied_embeddings"] is True
    assert facts["rope"]["base"] == 5_000_000.0
    assert facts["rope"]["scaling"] == "none"
    assert facts["file_bytes"] == path.stat().st_size
    tensors = list(shaped_model.tensors(SHAPE))
    assert facts["quantization"] == {k: sum(t.kind == k for t in tensors) for k in ("Q4_K", "Q6_K", "F32")}
    assert facts["num_tensors"] == len(tensors)
    assert facts["memory_bytes"]["weights"] == sum(t.num_bytes for t in tensors)


def test_special_tokens_are_all_there_with_ids_kinds_and_roles(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokens = said(capsys, path)["special_tokens"]
    first = SHAPE.vocab - shaped_vocabulary.NUM_SPECIAL
    assert [t["id"] for t in tokens] == list(range(first, SHAPE.vocab))
    by_text = {t["text"]: t for t in tokens}
    for place, text in shaped_vocabulary.CONTROL.items():
        assert (by_text[text]["id"], by_text[text]["type"]) == (first + place, "control")
    for place, text in shaped_vocabulary.USER_DEFINED.items():
        assert (by_text[text]["id"], by_text[text]["type"]) == (first + place, "user_defined")
    roles = {t["role"]: t["text"] for t in tokens if t["role"]}
    assert (roles["bos"], roles["eos"], roles["pad"]) == ("<|begin_of_text|>", "<|im_end|>", "<|pad|>")
    assert (roles["think_open"], roles["tool_call_close"]) == ("<think>", "</tool_call>")


@pytest.mark.parametrize("kv", ["f16", "q8_0", "q4_0"])
@pytest.mark.parametrize(("slots", "context"), [(1, 256), (8, 2048), (32, 4096)])
def test_kv_memory_is_slots_times_context_times_its_rate(
    path: Path, capsys: pytest.CaptureFixture[str], kv: str, slots: int, context: int
) -> None:
    sizes = said(capsys, path, "--slots", slots, "--context", context, "--kv", kv)["memory_bytes"]
    values = 2 * SHAPE.kv_width * SHAPE.layers  # a key and a value in each layer
    assert sizes["kv_per_token"] == values * {"f16": 64, "q8_0": 34, "q4_0": 18}[kv] // 32
    assert sizes["kv"] == slots * context * sizes["kv_per_token"]
    parts = [size for name, size in sizes.items() if name not in ("kv_per_token", "total")]
    assert sizes["total"] == sum(parts)


def smollm3_header(path: Path) -> gguf_header.GgufHeader:
    """The header of the whole 3B shape over a small vocabulary's metadata: no 2 GB of weights are written."""
    known = gguf_header.read(path)
    numbers = {
        "block_count": SMOLLM3_3B.layers,
        "embedding_length": SMOLLM3_3B.width,
        "feed_forward_length": SMOLLM3_3B.ffn,
        "attention.head_count": SMOLLM3_3B.heads,
        "attention.head_count_kv": SMOLLM3_3B.kv_heads,
    }
    metadata = known.metadata | {f"smollm3.{name}": number for name, number in numbers.items()}
    metadata["tokenizer.ggml.tokens"] = ["x"] * SMOLLM3_3B.vocab
    kinds = {"F32": 0, "Q4_K": 12, "Q6_K": 14}
    tensors = tuple(
        gguf_header.TensorFacts(t.name, (t.columns, t.rows) if t.kind != "F32" else (t.columns,), kinds[t.kind], 0)
        for t in shaped_model.tensors(SMOLLM3_3B)
    )
    return gguf_header.GgufHeader(path, 3, metadata, tensors, 0, 0, "smollm3")


def test_smollm3_is_as_it_was_measured(path: Path) -> None:
    """On one H100, by nvidia-smi: 64 slots of 512 tokens in f16, with graphs of 512 and of 2,048 tokens."""
    header = smollm3_header(path)
    assert header.kv_bytes_per_token(2.0) == 73_728
    assert header.kv_bytes_per_token(34 / 32) == 39_168
    assert inspect.nope_layers(header) == list(range(3, 36, 4))
    for graph_tokens, measured in ((512, 4821), (2048, 5067)):
        expected = memory_estimate.estimate(
            header, context_tokens=512, slots=64, kv_type="f16", on_gpu=True, graph_tokens=graph_tokens
        )
        assert expected.total == pytest.approx(measured * memory_estimate.MIB, rel=0.01)
    one = memory_estimate.estimate(header, context_tokens=16_384, slots=1, kv_type="q8_0", on_gpu=True)
    assert one.total < 4 * 2**30


def test_a_table_for_people_has_every_part(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(path), "--slots", "4", "--context", "1024", "--kv", "q8_0"]) == 0
    shown = capsys.readouterr().out
    for part in (
        "9 of width 512, 2 without RoPE (3, 7,",
        "8 of 64, 2 with keys and values (4 to 1, which saves 75%",
        "base 5,000,000",
        "2,048 tokens (gpt2, smaug-bpe), embeddings tied",
        "'<think>'",
        "Q4_K",
        "4 x 1,024 tokens, KV q8_0",
        "total",
    ):
        assert part in shown, part


def test_a_catalog_name_works_and_needs_neither_llama_cpp_nor_redis() -> None:
    program = (
        "import sys; sys.modules['llama_cpp'] = None; sys.modules['redis'] = None\n"
        "from inference.inspect import main\n"
        "sys.exit(main(['smollm2-135m', '--json']))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert (facts["architecture"], facts["head_count"], facts["head_count_kv"]) == ("llama", 9, 3)
    assert facts["nope_layers"] == []
    assert facts["template"]["system"] is True
    assert facts["template"]["generation_prompt"] is True


def test_templates_are_told_apart() -> None:
    ours = template_facts((inspect.TEMPLATES / "smollm3.jinja").read_text())
    assert ours["system"] and ours["thinking"] and ours["tools"] and ours["generation_prompt"]
    bare = template_facts("{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}")
    assert not (bare["system"] or bare["thinking"] or bare["tools"] or bare["generation_prompt"])


def test_metadata_of_unlikely_kinds_is_no_crash(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = (
        small_gguf.strings_value("tokenizer.ggml.tokens", ["a", "b"]),
        small_gguf.strings_value("tokenizer.ggml.token_type", ["x", "y"]),
        small_gguf.number_value("tokenizer.ggml.eos_token_id", 4_000_000_000),
        small_gguf.numbers_value("llama.attention.head_count", [7]),
        small_gguf.number_value("llama.attention.head_count_kv", 0),
    )
    small_gguf.write(tmp_path / "odd.gguf", more=odd)
    facts = said(capsys, tmp_path / "odd.gguf")
    assert facts["gqa_ratio"] is None
    for key in ("llama.block_count2", "general.name"):
        small_gguf.write(tmp_path / "odd.gguf", more=(small_gguf.number_value(key, 3),))
        assert main([str(tmp_path / "odd.gguf")]) in (0, 1)
        out = capsys.readouterr()
        assert bool(out.out) != bool(out.err)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["README.md"], "README.md"),
        (["nowhere/none.gguf"], "There is no model file nowhere/none.gguf"),
        (["inference"], "inference"),
        (["no-such-name"], "no-such-name"),
        (["nobody/nothing:none.gguf"], "pullmodel nobody/nothing:none.gguf"),
        (["smollm2-135m", "--slots", "0"], "--slots"),
        (["smollm2-135m", "--context", "-5"], "--context"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_1(arguments: list[str], words: str) -> None:
    command = [sys.executable, "-m", "inference.inspect", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert not done.stdout
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_a_damaged_file_is_one_sentence_wherever_it_is_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = small_gguf.write(tmp_path / "m.gguf", more=small_gguf.TOKENS).read_bytes()
    for length in range(0, len(data), 7):
        (tmp_path / "m.gguf").write_bytes(data[:length])
        assert main([str(tmp_path / "m.gguf")]) == 1
        out = capsys.readouterr()
        assert not out.out
        assert "m.gguf" in out.err
        assert len(out.err.strip().splitlines()) == 1
