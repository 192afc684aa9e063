"""`engine` and the shaped model on a tiny file that is written here."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from inference.bench import shaped_model, shaped_vocabulary
from inference.bench.__main__ import main
from inference.bench.shaped_model import SMOLLM3_3B, TINY, BlockPool, Shape
from inference.errors import ConfigError
from inference.model_files import gguf_header

pytestmark = pytest.mark.model

NEW_TOKENS = 12


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shaped_model.write(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """More only wait for each other where other tests run beside."""
    monkeypatch.setenv("WORKER_THREADS", "1")


def rows_of(tiny: Path, folder: Path, words: str) -> list[dict[str, Any]]:
    found = folder / "rows.json"
    command = f"engine --model {tiny} --json {found} --prompt-tokens 16 --max-tokens {NEW_TOKENS} {words}"
    assert main(command.split()) == 0
    return json.loads(found.read_text())["rows"]


def test_the_real_shape_has_the_tensors_of_the_real_file() -> None:
    kinds = Counter(tensor.kind for tensor in shaped_model.tensors(SMOLLM3_3B))
    assert kinds == {"Q4_K": 216, "Q6_K": 37, "F32": 73}
    size = sum(tensor.num_bytes for tensor in shaped_model.tensors(SMOLLM3_3B))
    assert size == pytest.approx(1.907e9, rel=0.003)


def test_the_real_vocabulary_is_full_and_has_no_token_twice() -> None:
    tokens, merges = shaped_vocabulary.byte_level_words(SMOLLM3_3B.vocab - shaped_vocabulary.NUM_SPECIAL)
    assert len(tokens) == len(set(tokens)) == 128_000
    assert len(merges) == len(tokens) - 256


def test_special_tokens_have_their_places_from_the_end(tiny: Path) -> None:
    tokens = gguf_header.read(tiny).strings("tokenizer.ggml.tokens")
    assert len(tokens) == TINY.vocab
    first = TINY.vocab - 256
    for id_, text in {11: "<|im_start|>", 12: "<|im_end|>", 2: "<think>"}.items():
        assert tokens[first + id_] == text
    assert gguf_header.read(tiny).metadata["tokenizer.ggml.eos_token_id"] == first + 12


def test_one_seed_writes_one_file(tiny: Path, tmp_path: Path) -> None:
    assert shaped_model.write(tmp_path / "a.gguf").read_bytes() == tiny.read_bytes()
    assert shaped_model.write(tmp_path / "b.gguf", seed=8).read_bytes() != tiny.read_bytes()
    assert not list(tmp_path.glob("*.part"))


def test_rows_that_are_cut_from_one_pool_all_differ() -> None:
    import numpy as np

    pool = BlockPool("Q6_K", np.random.default_rng(1), 257)
    data = np.concatenate([part.copy() for part in pool.parts(8 * 256, 0.1)])
    rows = {row.tobytes() for row in data.reshape(256, -1)}
    assert len(rows) == 256


@pytest.mark.parametrize("change", [{"width": 100}, {"heads": 3}, {"kv_heads": 3}, {"layers": 0}, {"vocab": 512}])
def test_a_shape_that_cannot_be_is_refused(change: dict[str, int]) -> None:
    sizes = {"layers": 4, "width": 256, "ffn": 512, "heads": 4, "kv_heads": 1, "vocab": 3072, "context_tokens": 512}
    with pytest.raises(ConfigError):
        Shape(**{**sizes, **change})


def test_a_closed_loop_gives_a_row_with_every_number(tiny: Path, tmp_path: Path) -> None:
    (row,) = rows_of(tiny, tmp_path, "--concurrency 2 --requests 4 --goodput ttft:60000")
    assert (row["completed"], row["failed"], row["concurrency"]) == (4, 0, 2)
    assert row["total_output_tokens"] == 4 * NEW_TOKENS
    for name in ("ttft", "tpot", "itl", "e2el", "queue"):
        for kind in ("mean", "median", "p90", "p99"):
            assert row[f"{kind}_{name}_ms"] > 0
    assert row["request_goodput"] == row["request_throughput"] > 0
    assert 0 <= row["cached_tokens_share"] < 1
    assert row["num_steps"] >= 2 * NEW_TOKENS - 2
    assert min(row["forward_ms_per_step"], row["sampling_ms_per_step"], row["host_ms_per_step"]) > 0
    assert row["rss_anon_mb_end"] > 0
    assert row["rss_anon_mb_start"] > 0


def test_raw_prompts_have_exactly_the_wanted_tokens(tiny: Path, tmp_path: Path) -> None:
    (row,) = rows_of(tiny, tmp_path, "--concurrency 2 --requests 4 --raw")
    assert row["total_input_tokens"] == 4 * 16
    assert row["cached_tokens_share"] == 0


@pytest.mark.parametrize("form", ["--raw", ""])
def test_a_conversation_finds_its_history_in_the_cache(tiny: Path, tmp_path: Path, form: str) -> None:
    (row,) = rows_of(tiny, tmp_path, f"--concurrency 2 --requests 2 --workload multi-turn --turns 4 {form}")
    assert row["completed"] == 8
    assert row["history_cached_share"] > 0.9
    assert all(row[f"median_ttft_ms_turn_{turn}"] > 0 for turn in range(1, 5))


def test_a_shared_prefix_is_read_from_the_cache(tiny: Path, tmp_path: Path) -> None:
    words = "--concurrency 1 --requests 4 --workload shared-prefix --prefix-tokens 200"
    (row,) = rows_of(tiny, tmp_path, words)
    assert row["completed"] == 4
    assert row["cached_tokens_share"] > 0.4


def test_an_open_loop_has_a_row_for_each_rate(tiny: Path, tmp_path: Path) -> None:
    slow, fast = rows_of(tiny, tmp_path, "--concurrency 2 --requests 4 --request-rate 5,500")
    assert (slow["request_rate"], fast["request_rate"]) == (5.0, 500.0)
    assert slow["completed"] == fast["completed"] == 4
    assert 1 <= fast["concurrency"] <= 4


def test_write_model_takes_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "small.gguf"
    assert main(["write-model", str(path), "--shape", "tiny", "--layers", "2", "--context-tokens", "512"]) == 0
    header = gguf_header.read(path)
    assert header.number("smollm3.block_count", 0) == 2
    assert header.trained_context_tokens == 512
    assert f"{path.stat().st_size:,} bytes" in capsys.readouterr().out
